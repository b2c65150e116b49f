import { readFileSync } from "node:fs";
import { join } from "node:path";

import { expect, test } from "vitest";

import type { PlanItem } from "$lib/bindings/PlanItem";

import { families } from "./bar";

const css = readFileSync(join(process.cwd(), "src/styles/tokens.css"), "utf8");
const colour = (theme: string, token: string) => new RegExp(`--${token}: #([0-9a-f]{6})`).exec(theme)?.[1] ?? "";

/** WCAG 2: relative luminance, contrast. */
function luminance(hex: string): number {
  const [r = 0, g = 0, b = 0] = (hex.match(/../g) ?? [])
    .map((pair) => parseInt(pair, 16) / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function contrast(a: string, b: string): number {
  const [dark = 0, light = 0] = [luminance(a), luminance(b)].sort((x, y) => x - y);
  return (light + 0.05) / (dark + 0.05);
}

test("every name on a memory bar has 4.5:1 on its shade, in light and dark", () => {
  const items = (["weights", "trained", "activations", "runtime"] as const).flatMap((family) =>
    Array.from({ length: 5 }, (_, i) => ({ name: `${family} ${i}`, label: "", family, bytes: 1 }) as PlanItem),
  );
  const shown = families(items, "en").flatMap(({ rows }) => rows);
  expect(new Set(shown.map((item) => item.colour)).size).toBe(12);
  for (const [name, theme] of [
    ["light", css.slice(0, css.indexOf("color-scheme: dark"))],
    ["dark", css.slice(css.indexOf("color-scheme: dark"))],
  ] as const)
    for (const item of shown) {
      const label = colour(theme, item.soft ? "m-label-soft" : "m-label");
      expect(contrast(label, colour(theme, item.colour)), `${name} ${item.colour}`).toBeGreaterThanOrEqual(4.5);
    }
});
