import { clearMocks, mockIPC } from "@tauri-apps/api/mocks";
import { afterEach, beforeEach, expect, test, vi } from "vitest";

import type { Hardware } from "$lib/bindings/Hardware";
import type { Inspection } from "$lib/bindings/Inspection";
import { openConfig } from "$lib/draft";
import type { PlanRequest } from "$lib/platform";

import { card } from "./card.svelte";
import { data } from "./data.svelte";
import { model } from "./model.svelte";
import { plan } from "./plan.svelte";

const computer = (name: string) =>
  ({ name, train_on: "card", cards: [{ name, memory_bytes: 8 * 2 ** 30, compute_capability: "8.6" }] }) as Hardware;

/** Plans that are asked for and wait to be answered. */
let asked: { request: PlanRequest; outline: boolean; answer: () => void; refuse: () => void }[] = [];
const settled = () => new Promise((resolve) => setTimeout(resolve, 0));
const later = () => new Promise((resolve) => setTimeout(resolve, 60));
/** The wishes rest: the whole plan is asked for. */
const rested = () => vi.waitUntil(() => asked.at(-1)?.outline === false);

beforeEach(() => {
  asked = [];
  mockIPC((_, args) => {
    const { request, outline } = args as { request: PlanRequest; outline: boolean };
    return new Promise((resolve, reject) => {
      const { rank } = request.config.lora;
      const change = outline ? null : { value: `other than ${rank}` };
      const reason = { setting: "rank", value: String(rank), change, if_changed: change?.value ?? "" };
      const take = (name: string, memory_limit_bytes: number | null) => ({
        name,
        config: { ...openConfig(), memory_limit_bytes },
      });
      const alternatives = outline ? [] : [{ name: `beside ${rank}` }, take("room", 5), take("fast", null)];
      const plan = { of: request.hardware.name, rank, fits: true, remedies: [], reasons: [reason], alternatives };
      asked.push({
        request,
        outline,
        answer: () => resolve(plan),
        refuse: () => reject({ code: "plan.no_targets", message: "m", next_step: "n" }),
      });
    });
  });
  const found = { model: { shape: {} }, stats: {} } as unknown as Inspection;
  model.path = "/m";
  model.found = found;
  data.path = "/d.jsonl";
  data.found = found;
  card.here = computer("here");
});
afterEach(() => {
  plan.reset();
  plan.forget();
  clearMocks();
  vi.restoreAllMocks();
});

const rank = (rank: number) => {
  plan.wish((draft) => (draft.lora.rank = rank));
  return plan.replan();
};
const ranks = () => asked.map(({ request }) => request.config.lora.rank);
const shownRank = () => (plan.plan as unknown as { rank: number } | null)?.rank;

test("a change is asked for at once, and of those made meanwhile only the last", async () => {
  const done = rank(8);
  expect(ranks()).toEqual([8]);
  for (const next of [12, 16, 20, 24]) void rank(next);
  expect(ranks(), "one is in flight").toEqual([8]);
  asked[0]?.answer();
  await settled();
  expect(shownRank(), "what came is nearer than what was there").toBe(8);
  expect(ranks()).toEqual([8, 24]);
  asked[1]?.answer();
  await done;
  expect(shownRank()).toBe(24);
});

test("while wishes come outlines are asked for, and when they rest what other choices would do", async () => {
  const others = () => [plan.plan?.alternatives[0]?.name, plan.plan?.reasons[0]?.if_changed];
  void rank(8);
  asked[0]?.answer();
  await settled();
  expect(asked[0]?.outline, "nothing is there that would fill it").toBe(false);
  for (const next of [12, 16]) {
    void rank(next);
    asked.at(-1)?.answer();
    await settled();
  }
  expect(asked.map(({ outline }) => outline)).toEqual([false, true, true]);
  expect(plan.plan?.reasons[0]?.value).toBe("16");
  expect(others(), "as last known").toEqual(["beside 8", "other than 8"]);
  expect(plan.busy).toBe(true);
  plan.accept(openConfig());
  expect(plan.draft.lora.rank, "an offer of before does not take the wish back").toBe(16);
  await rested();
  expect(ranks()).toEqual([8, 12, 16, 16]);
  asked.at(-1)?.answer();
  await settled();
  expect(others()).toEqual(["beside 16", "other than 16"]);
  expect(plan.busy).toBe(false);
  plan.accept({ ...openConfig(), seed: 7 });
  expect(plan.draft.seed).toBe(7);
});

test("an answer for another model or another card is not shown", async () => {
  void rank(8);
  card.here = computer("other");
  void plan.replan();
  asked[0]?.answer();
  await settled();
  expect(plan.plan).toBeNull();
  asked[1]?.answer();
  await settled();
  expect((plan.plan as unknown as { of: string }).of).toBe("other");
});

test("an answer that comes after everything was put away is not shown", async () => {
  void rank(8);
  model.found = null;
  plan.forget();
  asked[0]?.answer();
  await settled();
  expect(plan.plan).toBeNull();
  expect(plan.busy).toBe(false);
});

test("a refused wish keeps the last plan, so that it can be taken back", async () => {
  void rank(8);
  asked[0]?.answer();
  await settled();
  void rank(9);
  asked[1]?.refuse();
  await settled();
  expect(plan.error?.code).toBe("plan.no_targets");
  expect(plan.plan).toBeNull();
  expect(plan.last).not.toBeNull();
});

test("plans for other cards wait for the plan, come one at a time, and only while somebody looks", async () => {
  const unwant = ["a", "b", "c"].map((name) => plan.want(name, computer(name)));
  const names = () => asked.map(({ request }) => request.hardware.name);
  void rank(8);
  await later();
  expect(names(), "none before the plan is there").toEqual(["here"]);
  asked[0]?.answer();
  await later();
  expect(names()).toEqual(["here", "a"]);
  unwant[1]?.();
  asked[1]?.answer();
  await later();
  expect(names(), "nobody looks at b any more").toEqual(["here", "a", "c"]);

  void rank(12);
  expect(names(), "a change is never kept waiting by them").toEqual(["here", "a", "c", "here"]);
  asked[2]?.answer();
  await later();
  expect(Object.keys(plan.elsewhere), "c was for the wish before").toEqual(["a"]);
  asked[3]?.answer();
  await rested();
  for (const i of [4, 5, 6]) {
    asked[i]?.answer();
    await later();
  }
  expect(names().slice(4), "when the wishes rest").toEqual(["here", "a", "c"]);
  expect(Object.keys(plan.elsewhere).sort()).toEqual(["a", "c"]);
  unwant[0]?.();
  unwant[2]?.();
});

test("busy is said from a wish until its plan and those beside it are there", async () => {
  const unwant = plan.want("a", computer("a"));
  void rank(8);
  void rank(12);
  for (const [i, what] of ["8", "outline of 12", "12", "12 on a"].entries()) {
    await vi.waitUntil(() => asked.length === i + 1);
    expect(plan.busy, what).toBe(true);
    asked[i]?.answer();
  }
  await later();
  expect(asked.length).toBe(4);
  expect(plan.busy).toBe(false);
  unwant();
});

test("the same card wanted twice is planned for once and until both are gone", async () => {
  const a = computer("a");
  const [first, second] = [plan.want("a", a), plan.want("a", a)];
  void rank(8);
  asked[0]?.answer();
  await later();
  asked[1]?.answer();
  await later();
  expect(asked.length).toBe(2);
  first();
  void rank(12);
  asked[2]?.answer();
  await rested();
  asked[3]?.answer();
  await later();
  expect(asked.length).toBe(5);
  second();
  asked[4]?.answer();
});

test("a card that cannot be planned for says why, and does not hold up the next", async () => {
  const unwant = ["a", "b"].map((name) => plan.want(name, computer(name)));
  void rank(8);
  asked[0]?.answer();
  await later();
  asked[1]?.refuse();
  await later();
  asked[2]?.answer();
  await later();
  expect(plan.elsewhere.a).toMatchObject({ plan: null, refused: { code: "plan.no_targets" } });
  expect(plan.elsewhere.b).toMatchObject({ plan: { of: "b" }, refused: null });
  expect(plan.elsewhere.b?.beside, "the plan that it can be compared with").toBe(plan.plan);
  unwant.forEach((end) => end());
});

test("a memory limit is one of this computer, not of the others", async () => {
  const unwant = plan.want("a", computer("a"));
  plan.wish((draft) => (draft.memory_limit_bytes = 7));
  void plan.replan();
  asked[0]?.answer();
  await later();
  expect(asked.map(({ request }) => request.config.memory_limit_bytes)).toEqual([7, null]);
  asked[1]?.answer();
  await settled();
  unwant();
});

test("an alternative that is taken is the one in use, and what it was one to is kept, until another wish", async () => {
  void rank(8);
  asked[0]?.answer();
  await settled();
  const before = plan.draft;
  plan.pick("room");
  expect([plan.choice?.name, plan.draft.memory_limit_bytes]).toEqual(["room", 5]);
  expect(plan.choice?.plan, "whose alternatives stay on offer").toBe(plan.plan);
  plan.pick("fast");
  expect([plan.choice?.name, plan.draft.memory_limit_bytes]).toEqual(["fast", null]);
  plan.pick(null);
  expect(plan.draft).toBe(before);
  expect(plan.choice).toBeNull();
  plan.pick("room");
  plan.wish((draft) => (draft.seed = 3));
  expect(plan.choice).toBeNull();
});

test("an alternative of a plan before the latest wish is not taken: the wish would be lost", async () => {
  void rank(8);
  asked[0]?.answer();
  await settled();
  void rank(12);
  plan.pick("room");
  expect([plan.choice, plan.draft.lora.rank]).toEqual([null, 12]);
  asked[1]?.answer();
  await settled();
});

test("whoever asks while an answer is awaited is answered with the latest plan", async () => {
  void rank(8);
  let done = false;
  void rank(12).then(() => (done = true));
  asked[0]?.answer();
  await settled();
  expect(done).toBe(false);
  asked[1]?.answer();
  await settled();
  expect([done, shownRank()]).toEqual([true, 12]);
});

test("kept settings change the wishes, not what belongs to the data", () => {
  plan.wish((draft) => (draft.data.evaluation_path = "/held-out.jsonl"));
  const kept = openConfig();
  kept.lora.rank = 64;
  kept.data.length = 448;
  plan.choose(kept);
  expect(plan.draft.lora.rank).toBe(64);
  expect(plan.draft.data).toMatchObject({ length: 448, evaluation_path: "/held-out.jsonl", path: "" });
});
