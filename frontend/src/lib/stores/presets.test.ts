import { clearMocks, mockIPC } from "@tauri-apps/api/mocks";
import { afterEach, expect, test } from "vitest";

import { openConfig } from "$lib/draft";

import { plan } from "./plan.svelte";
import { presets } from "./presets.svelte";

afterEach(() => {
  plan.reset();
  clearMocks();
});

test("what is saved are the choices, under the name as it was typed", async () => {
  const said: unknown[] = [];
  mockIPC((command, args) => {
    said.push([command, args]);
    return [];
  });
  plan.take({ ...openConfig(), name: "run", model: "/m", micro_batch: 2 });
  expect(await presets.save("速度 🔥 a b")).toBe(true);
  expect(said).toEqual([["save_preset", { name: "速度 🔥 a b", config: { ...openConfig(), micro_batch: 2 } }]]);
});

test("a save that fails says why and leaves the list", async () => {
  mockIPC(() => [{ name: "a", config: openConfig() }]);
  await presets.refresh();
  mockIPC(() => {
    throw { code: "window.io", message: "disk", next_step: "n" };
  });
  expect(await presets.save("b")).toBe(false);
  expect(presets.error?.code).toBe("window.io");
  expect(presets.list.map(({ name }) => name)).toEqual(["a"]);
});

test("loading a name that is gone changes nothing", async () => {
  mockIPC(() => [{ name: "a", config: { ...openConfig(), micro_batch: 8 } }]);
  await presets.refresh();
  expect(presets.load("b")).toBe(false);
  expect(plan.touched).toBe(false);
  expect(presets.load("a")).toBe(true);
  expect(plan.draft.micro_batch).toBe(8);
});
