/** The memory of a plan as a bar and its legend: hue says family, shade says item. */

import type { Family } from "$lib/bindings/Family";
import type { Plan } from "$lib/bindings/Plan";
import type { PlanItem } from "$lib/bindings/PlanItem";
import { GIB, type Lang } from "$lib/format";
import { itemLabel } from "$lib/i18n/engine";
import type { Segment } from "$lib/ui/MemoryBar.svelte";

/** From the shade `soft` on a family is too light for the label of its darker ones. */
const FAMILIES: readonly { family: Family; token: string; shades: number; soft: number }[] = [
  { family: "weights", token: "m-weights", shades: 4, soft: 4 },
  { family: "trained", token: "m-train", shades: 3, soft: 2 },
  { family: "activations", token: "m-act", shades: 3, soft: 2 },
  { family: "runtime", token: "m-run", shades: 2, soft: Infinity },
];

export interface FamilyRows {
  family: Family;
  rows: (PlanItem & { colour: string; soft: boolean })[];
  bytes: number;
}

export function families(items: readonly PlanItem[], lang: Lang): FamilyRows[] {
  return FAMILIES.map(({ family, token, shades, soft }) => {
    const rows = items
      .filter((item) => item.family === family && item.bytes > 0)
      .map((item, i) => ({
        ...item,
        label: itemLabel(item.name, item.label, lang),
        colour: `${token}-${Math.min(i + 1, shades)}`,
        soft: i + 1 >= soft,
      }));
    return { family, rows, bytes: rows.reduce((sum, item) => sum + item.bytes, 0) };
  }).filter(({ rows }) => rows.length > 0);
}

export interface RestWords {
  free: string;
  heldBack: string;
  margin: string;
  others: string;
}

/** What is not planned for, in the order of the bar: free, held back by a limit, the margin, what others use now. */
export function rest(plan: Plan, words: RestWords): Segment[] {
  const { total_bytes, others_bytes, margin_bytes, budget_bytes } = plan.budget;
  const heldBack = total_bytes - others_bytes - margin_bytes - budget_bytes;
  const segments: Segment[] = [
    { name: "~free", label: words.free, colour: "surface", bytes: budget_bytes - plan.planned_bytes, ink: true },
    { name: "~limit", label: words.heldBack, colour: "hover", bytes: heldBack, ink: true },
    { name: "~margin", label: words.margin, colour: "selected", bytes: margin_bytes, ink: true },
    { name: "~others", label: words.others, colour: "m-desk", bytes: others_bytes, hatched: true, ink: true },
  ];
  return segments.filter(({ bytes }) => bytes > 0);
}

/** Where a bar ends, null being at the whole: a small run in a large memory would be a sliver, so at a round figure. */
export function zoomOf(plan: Plan): number | null {
  if (!plan.fits || plan.planned_bytes > plan.budget.total_bytes * 0.4) return null;
  const wanted = (plan.planned_bytes * 1.3) / GIB;
  const power = 10 ** Math.floor(Math.log10(wanted));
  const nice = [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].find((n) => n * power >= wanted) ?? 10;
  return nice * power * GIB;
}
