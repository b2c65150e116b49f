import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

import { expect, test } from "vitest";

import type { Hardware } from "$lib/bindings/Hardware";
import { GIB } from "$lib/format";
import type { Profile } from "$lib/platform";

import { grouped, groupOf, GROUPS, likeMemory, matches, shortName, withMemory, type Group } from "./cards";

const folder = join(process.cwd(), "../assets/profiles");

/** The cards the engine brings along. */
const cards: Profile[] = readdirSync(folder).flatMap((file) => {
  const text = readFileSync(join(folder, file), "utf8");
  const card = text.split("[card]")[1];
  if (card === undefined) return [];
  const word = (of: string, key: string) => new RegExp(`^${key} = "?([^"\\n]*)"?$`, "m").exec(of)?.[1] ?? "";
  const number = (key: string) => Number(word(card, key).replace(/_/g, ""));
  const hardware = {
    name: word(text, "name"),
    train_on: "card",
    cards: [
      {
        name: word(card, "name"),
        memory_bytes: number("memory_bytes"),
        compute_capability: word(card, "compute_capability"),
        tensor_flops_per_s: number("tensor_flops_per_s"),
      },
    ],
  } as Hardware;
  return [{ id: word(text, "id"), name: word(text, "name"), hardware, own: false }];
});
const known = (id: string) => cards.find((card) => card.id === id) as Profile;

test.each<[string, Group]>([
  ["rtx-5090-d-v2-24gb", "rtx50"],
  ["rtx-4060-ti-16gb", "rtx40"],
  ["rtx-3050-oem-8gb", "rtx30"],
  ["rtx-2060-12gb", "rtx20"],
  ["titan-rtx-24gb", "rtx20"],
  ["rtx-2060-laptop-6gb", "laptop"],
  ["rtx-2080-max-q-laptop-8gb", "laptop"],
  ["rtx-5090-laptop-24gb", "laptop"],
  ["quadro-rtx-8000-48gb", "workstation"],
  ["rtx-a6000-48gb", "workstation"],
  ["rtx-4000-sff-ada-20gb", "workstation"],
  ["rtx-pro-6000-blackwell-max-q-96gb", "workstation"],
  ["rtx-pro-6000-blackwell-server-96gb", "datacentre"],
  ["l40s-48gb", "datacentre"],
  ["t4-16gb", "datacentre"],
  ["h200-sxm-141gb", "datacentre"],
])("%s is among %s", (id, group) => {
  expect(groupOf(known(id))).toBe(group);
});

test("every known card is in exactly one group, in the order of the groups", () => {
  const groups = grouped(cards);
  expect(groups.map(({ group }) => group)).toEqual(GROUPS.filter((group) => group !== "own"));
  expect(groups.flatMap((g) => g.cards.map(({ id }) => id)).sort()).toEqual(cards.map(({ id }) => id).sort());
});

test("a card's short name is without its maker, and another maker's stays", () => {
  expect(shortName("NVIDIA GeForce RTX 3060")).toBe("RTX 3060");
  expect(shortName("NVIDIA RTX A6000")).toBe("RTX A6000");
  expect(shortName("Quadro RTX 8000")).toBe("Quadro RTX 8000");
});

test("within a group numbers count as numbers", () => {
  const rtx40 = grouped(cards).find(({ group }) => group === "rtx40");
  const ids = rtx40?.cards.map(({ id }) => id) ?? [];
  expect(ids.slice(0, 3)).toEqual(["rtx-4060-8gb", "rtx-4060-ti-8gb", "rtx-4060-ti-16gb"]);
});

test("a search takes words in any order, memory with and without a space", () => {
  const found = (query: string) => cards.filter((card) => matches(card, query)).map(({ id }) => id);
  expect(found("4060 ti")).toEqual(["rtx-4060-ti-16gb", "rtx-4060-ti-8gb"]);
  expect(found("16GB 4060")).toEqual(["rtx-4060-ti-16gb"]);
  expect(found("4060, 16 GiB")).toEqual(["rtx-4060-ti-16gb"]);
  expect(found("geforce laptop 5090")).toEqual(["rtx-5090-laptop-24gb"]);
  expect(found("6 gb").every((id) => id.includes("6gb") && !id.includes("16gb") && !id.includes("96gb"))).toBe(true);
  expect(found("radeon")).toEqual([]);
  expect(found("  ").length).toBe(cards.length);
  expect(found("(")).toEqual([]);
});

test("any card of a memory size has the speed of the slowest near it, never of a laptop or a card without bf16", () => {
  expect(likeMemory(cards, 12)?.id).toBe("rtx-3060-12gb");
  for (const gib of [4, 8, 11, 16, 24, 32, 48, 80, 200]) {
    const like = likeMemory(cards, gib) as Profile;
    expect(groupOf(like), String(gib)).not.toBe("laptop");
    expect(Number.parseFloat(like.hardware.cards[0]?.compute_capability ?? "0"), String(gib)).toBeGreaterThanOrEqual(8);
  }
  expect(likeMemory([], 12)).toBeNull();
});

test("a card with another memory is otherwise the same", () => {
  const before = known("rtx-3060-12gb").hardware;
  const after = withMemory(before, "10 GB", 10);
  const changed = { name: "10 GB", memory_bytes: 10 * GIB, memory_free_bytes: null };
  expect(after.cards[0]).toEqual({ ...before.cards[0], ...changed });
  expect(before.cards[0]?.memory_bytes).toBe(12 * GIB);
});

test("a described card is in the first group, whatever it starts from", () => {
  const own = { ...known("h200-sxm-141gb"), id: "我的 H200", name: "我的 H200", own: true };
  expect(grouped([...cards, own])[0]).toEqual({ group: "own", cards: [own] });
});
