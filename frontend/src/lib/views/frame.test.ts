import { render, screen } from "@testing-library/svelte";
import { tick } from "svelte";
import { afterEach, beforeEach, expect, test } from "vitest";

import type { Card } from "$lib/bindings/Card";
import type { CardReading } from "$lib/bindings/CardReading";
import type { Hardware } from "$lib/bindings/Hardware";
import type { Plan } from "$lib/bindings/Plan";
import { card } from "$lib/stores/card.svelte";
import { plan } from "$lib/stores/plan.svelte";
import { run } from "$lib/stores/run.svelte";
import { emptyRun } from "$lib/stores/run-state";

import { stepViews } from "./frame/steps.svelte";
import StatusBar from "./frame/StatusBar.svelte";

const GIB = 2 ** 30;

/** A run that trains on the card of this computer, which was looked at before it began. */
beforeEach(() => {
  const found = { name: "NVIDIA GeForce RTX 3060", memory_bytes: 12 * GIB, memory_free_bytes: 11 * GIB } as Card;
  card.here = { name: "here", train_on: "card", cards: [found] } as unknown as Hardware;
  run.id = "r";
  run.following = run.replayed = true;
  const reading = { used_bytes: 8 * GIB, total_bytes: 12 * GIB, temperature_c: 71, power_w: 166.6 } as CardReading;
  run.state = { ...emptyRun(), step: 5, nSteps: 9, reading };
  run.files = { ...run.files, plan: { fits: true, time: { total_s: 600 } } as Plan };
  plan.plan = { fits: false, time: { total_s: 60 } } as Plan;
});
afterEach(async () => {
  await run.close();
  run.files = { plan: null, config: null, settings: null, limits: null };
  plan.forget();
  card.here = null;
});

test("while a run lives the step says the plan it was started by, not what would fit beside it", () => {
  const said = () => stepViews().find(({ step }) => step === "plan");
  expect(said()).toMatchObject({ mark: "done", words: "Fits, 10 min" });
  run.following = false;
  expect(said()).toMatchObject({ mark: "stop" });
});

test("while a run lives the card is as it read it last, afterwards as it was looked at", async () => {
  render(StatusBar);
  const device = screen.getByTestId("status-device");
  expect(device.textContent).toContain("8.00 of 12.00 GiB, 71 °C, 167 W");
  run.following = false;
  await tick();
  expect(device.textContent).toContain("1.00 of 12.00 GiB");
  expect(device.textContent).not.toContain("°C");
});
