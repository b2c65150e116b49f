import { render, screen } from "@testing-library/svelte";
import { tick } from "svelte";
import { afterEach, expect, test } from "vitest";

import type { Hardware } from "$lib/bindings/Hardware";
import type { Plan } from "$lib/bindings/Plan";
import { card } from "$lib/stores/card.svelte";
import { plan, type Elsewhere } from "$lib/stores/plan.svelte";

import Compare from "./plan/Compare.svelte";

const lasting = (total_s: number) =>
  ({
    fits: true,
    items: [],
    budget: { total_bytes: 8, others_bytes: 0, margin_bytes: 0, budget_bytes: 8 },
    time: { total_s, tokens_per_s: 1 },
  }) as unknown as Plan;

function show(made: Elsewhere, beside: Plan) {
  const hardware = { name: "x", cards: [{ name: "x" }] } as Hardware;
  card.profiles = [{ id: "x", name: "X", hardware, own: false }];
  plan.compared = { card: "x" };
  plan.elsewhere = { x: made };
  return render(Compare, { plan: beside });
}
afterEach(() => {
  plan.compared = null;
  card.profiles = [];
  plan.forget();
});

test("the times of two plans are compared only where both are of the same wish", async () => {
  const here = lasting(600);
  const { rerender } = show({ plan: lasting(1200), beside: here, refused: null }, here);
  expect(screen.getByTestId("compare-time").textContent).toContain("(10 min later)");
  await rerender({ plan: lasting(300) });
  await tick();
  expect(screen.getByTestId("compare-time").textContent).not.toContain("later");
});

test("a card that the draft cannot be planned for says why", () => {
  const refused = { code: "plan.no_compute", message: "X does not compute in bf16", next_step: "" };
  show({ plan: null, beside: lasting(1), refused }, lasting(1));
  expect(screen.getByTestId("compare-refused").textContent).toBe("X does not compute in bf16");
});
