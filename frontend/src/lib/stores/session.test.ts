import { clearMocks, mockIPC } from "@tauri-apps/api/mocks";
import { afterEach, beforeEach, expect, test } from "vitest";

import type { Hardware } from "$lib/bindings/Hardware";
import type { Inspection } from "$lib/bindings/Inspection";
import type { RunConfig } from "$lib/bindings/RunConfig";
import type { RunSummary } from "$lib/bindings/RunSummary";
import type { PlanRequest } from "$lib/platform";

import { card } from "./card.svelte";
import { data } from "./data.svelte";
import { model } from "./model.svelte";
import { plan } from "./plan.svelte";
import { route } from "./route.svelte";
import { run } from "./run.svelte";
import { runs } from "./runs.svelte";
import { session } from "./session.svelte";

/** Runs that were started, by their length; a plan fits where that is at most 1024. */
let started: (number | null)[];

beforeEach(async () => {
  started = [];
  mockIPC((command, args) => {
    switch (command) {
      case "plan": {
        const { config } = (args as { request: PlanRequest }).request;
        return { fits: (config.data.length ?? 512) <= 1024, reasons: [], remedies: [], alternatives: [] };
      }
      case "start_run":
        started.push((args as { config: RunConfig }).config.data.length);
        return { run_id: "r", path: "/r" };
      case "watch_run":
        return 1;
      case "run_files":
        return { plan: null, config: {}, settings: null, limits: null };
      case "runs":
        return runs.list;
      default:
        return null;
    }
  });
  const found = { model: { shape: {} }, stats: {} } as unknown as Inspection;
  model.path = "/m";
  model.found = found;
  data.path = "/d.jsonl";
  data.found = found;
  card.here = { name: "here", train_on: "processor", cards: [] } as unknown as Hardware;
  await plan.replan();
});
afterEach(async () => {
  await run.close();
  runs.list = [];
  plan.reset();
  plan.forget();
  clearMocks();
});

const wishLength = (length: number) => plan.wish((draft) => (draft.data.length = length));
const summary = (id: string) => ({ id, state: "running", updated_ms: 0 }) as RunSummary;

test("a start waits for the plan of the latest wish and starts with that wish", async () => {
  wishLength(1024);
  await session.start();
  expect(started).toEqual([1024]);
});

test("a wish whose plan does not fit is not started, although the plan that is shown fits", async () => {
  route.go("plan");
  wishLength(4096);
  expect(session.obstacle, "of the plan before").toBeNull();
  await session.start();
  expect(started).toEqual([]);
  expect([session.obstacle, route.screen]).toEqual(["memory", "plan"]);
});

test("a start that is asked for twice is one run", async () => {
  await Promise.all([session.start(), session.start()]);
  expect(started.length).toBe(1);
});

test("nothing starts beside a run that lives, also when it is not the open one", async () => {
  runs.list = [summary("a")];
  expect([session.obstacle, session.nLiving]).toEqual(["run", 1]);
  await session.start();
  expect(started).toEqual([]);
  await run.open("a");
  expect(session.nLiving, "the open run is one of the list").toBe(1);
  await run.close();
  expect(session.nLiving, "a run lives on when it is closed").toBe(1);
  runs.list = [];
  expect([session.obstacle, session.nLiving]).toEqual([null, 0]);
});
