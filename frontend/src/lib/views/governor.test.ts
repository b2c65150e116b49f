import { fireEvent, render, screen } from "@testing-library/svelte";
import { expect, test, vi } from "vitest";

import type { GovernorConfig } from "$lib/bindings/GovernorConfig";
import { openConfig } from "$lib/draft";

import GovernorRows from "./plan/GovernorRows.svelte";

type Change = (limits: GovernorConfig) => void;

function show(limits: Partial<GovernorConfig> = {}, onCard = true) {
  const before = { ...openConfig().governor, ...limits };
  const onchange = vi.fn<(change: Change) => void>();
  const target = document.body.appendChild(document.createElement("tbody"));
  render(GovernorRows, { target, props: { limits: before, onCard, onchange } });
  /** What the last change made of the limits. */
  const changed = () => {
    const to = { ...before };
    onchange.mock.lastCall?.[0](to);
    return to;
  };
  return { changed, onchange };
}

test("every limit has its row and its reason", () => {
  show();
  const reasons = ["heat", "power", "yield", "quiet"].map(
    (id) => screen.getByTestId(`reason-${id}`).children[2]?.textContent,
  );
  expect(new Set(reasons).size).toBe(4);
  expect(reasons).not.toContain("");
});

test("without a card only the quiet hours are there, and what a wish for a card left", () => {
  show({}, false);
  expect(screen.queryByTestId("setting-heat")).toBeNull();
  expect(screen.getByTestId("setting-quiet")).toBeTruthy();
});

test("a wish that the processor cannot keep can be taken back", () => {
  show({ power_limit_w: 150 }, false);
  expect(screen.getByTestId<HTMLInputElement>("setting-power").value).toBe("150");
});

test("an empty limit is none, and only its own changes", async () => {
  const { changed } = show({ power_limit_w: 150 });
  await fireEvent.change(screen.getByTestId("setting-heat"), { target: { value: "" } });
  expect(changed()).toMatchObject({ temperature_limit_c: 0, power_limit_w: 150 });
  await fireEvent.change(screen.getByTestId("setting-power"), { target: { value: "" } });
  expect(changed()).toMatchObject({ temperature_limit_c: 87, power_limit_w: null });
  await fireEvent.click(screen.getByTestId("setting-yield"));
  expect(changed()).toMatchObject({ power_limit_w: 150, yield_to_others: true });
});

test("quiet hours are read as wide as they were typed, and refused where they are none", async () => {
  const { changed, onchange } = show();
  const quiet = screen.getByTestId("setting-quiet");
  await fireEvent.change(quiet, { target: { value: "25:00-07:00" } });
  expect(onchange).not.toHaveBeenCalled();
  expect(quiet.getAttribute("aria-invalid")).toBe("true");
  await fireEvent.change(quiet, { target: { value: "２２：００～７：００" } });
  expect(changed().quiet_hours).toBe("22:00-07:00");
  expect(quiet.getAttribute("aria-invalid")).toBe("false");
});
