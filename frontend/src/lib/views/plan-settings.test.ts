import { fireEvent, render, screen } from "@testing-library/svelte";
import { afterEach, expect, test } from "vitest";
import { clearMocks, mockIPC } from "@tauri-apps/api/mocks";

import type { Hardware } from "$lib/bindings/Hardware";
import type { Inspection } from "$lib/bindings/Inspection";
import type { ModelShape } from "$lib/bindings/ModelShape";
import { mockPlan } from "$lib/platform/mock-plan";
import type { PlanRequest } from "$lib/platform";
import { model } from "$lib/stores/model.svelte";
import { plan } from "$lib/stores/plan.svelte";

import PlanBar from "./plan/PlanBar.svelte";
import PlanSettings from "./plan/PlanSettings.svelte";

const GIB = 2 ** 30;

function made(trainOn: "card" | "processor", tied: boolean) {
  const shape = { tied, max_positions: 8192, n_layers: 30, vocab_rows: 131_072, hidden: 4096 } as ModelShape;
  model.found = { model: { shape } } as Inspection;
  const hardware = {
    train_on: trainOn,
    memory_total_bytes: 32 * GIB,
    memory_available_bytes: 24 * GIB,
    cards: [{ name: "RTX 3060", memory_bytes: 12 * GIB, compute_capability: "8.6", tensor_flops_per_s: 5e13 }],
  } as Hardware;
  return mockPlan({ config: plan.draft, shape, hardware } as PlanRequest);
}

function show(trainOn: "card" | "processor", tied: boolean): void {
  mockIPC(() => []);
  const shown = made(trainOn, tied);
  render(PlanSettings, { plan: shown, reasons: shown.reasons });
}

afterEach(() => {
  plan.reset();
  model.clear();
  clearMocks();
});

const choices = (id: string) => [...screen.getByTestId<HTMLSelectElement>(id).options].map((option) => option.value);

test("on a card the embedding can lie in system memory, and the wish is kept", async () => {
  show("card", false);
  expect(screen.getByTestId<HTMLSelectElement>("setting-embedding").value).toBe("host");
  await fireEvent.change(screen.getByTestId("setting-embedding"), { target: { value: "card" } });
  expect(plan.draft.embedding_on_host).toBe(false);
});

test("an embedding that is also the head, or on the processor, has no such choice", () => {
  show("card", true);
  expect(screen.queryByTestId("setting-embedding")).toBeNull();
});

test("the processor has no place for the embedding but its own, and its base is 32-bit or NF4", () => {
  show("processor", false);
  expect(screen.queryByTestId("setting-embedding")).toBeNull();
  expect(choices("setting-base")).toEqual(["f32", "nf4"]);
});

test("a card's base is 16-bit or NF4", () => {
  show("card", true);
  expect(choices("setting-base")).toEqual(["half", "nf4"]);
});

test("what waits in system memory has a bar of its own, and none where nothing does", () => {
  const bar = (trainOn: "card" | "processor", tied: boolean) => {
    const { unmount } = render(PlanBar, { plan: made(trainOn, tied), label: "m", onCard: true, testid: "bar" });
    const label = screen.queryByTestId("bar-host")?.getAttribute("aria-label") ?? null;
    unmount();
    return label;
  };
  expect(bar("card", false)).toBe("1.00 GiB pinned in system memory, of 24.00 GiB free");
  expect(bar("card", true)).toBeNull();
  expect(bar("processor", false)).toBeNull();
});
