import type { CardTable } from "$lib/bindings/CardTable";
import type { Fit } from "$lib/bindings/Fit";
import type { TableCard } from "$lib/bindings/TableCard";
import type { TableCell } from "$lib/bindings/TableCell";
import type { TableRow } from "$lib/bindings/TableRow";
import { forHardware } from "$lib/draft";
import { platform, type ModelFit } from "$lib/platform";

import { Asked } from "./asked.svelte";
import { card } from "./card.svelte";
import { data } from "./data.svelte";
import { plan } from "./plan.svelte";

/** How a model sits on a card, the best first. */
export const LEVELS = ["whole", "recompute", "offload", "large", "refused"] as const;
export type Level = (typeof LEVELS)[number];

export function levelOf({ fit }: ModelFit): Level {
  if (fit === null) return "refused";
  if (!fit.fits) return "large";
  if (fit.offloads) return "offload";
  return fit.recompute === "n" ? "whole" : "recompute";
}

export type CellFit = Fit | "refused";

export const fitOf = (cell: TableCell): CellFit => ("planned" in cell ? cell.planned.fit : "refused");

/** Of these columns the card with the lowest price at release that takes the model; null where none with a price does. */
export function cheapest(table: CardTable, model: TableRow, columns: readonly number[]): TableCard | null {
  let best: TableCard | null = null;
  for (const column of columns) {
    const [card, cell] = [table.cards[column], model.cells[column]];
    if (card === undefined || cell === undefined || card.release_price_usd === null) continue;
    const fit = fitOf(cell);
    if (fit !== "comfortable" && fit !== "recomputing") continue;
    if (best === null || card.release_price_usd < (best.release_price_usd ?? Infinity)) best = card;
  }
  return best;
}

export type Order = "fit" | "size" | "speed";

/**
 * By fit: of those that fit the most capable first, which is the largest; of those that do not, the nearest. By speed:
 * what fits comes first, a rate that cannot be had helps nobody.
 */
export function ordered(models: readonly ModelFit[], order: Order): ModelFit[] {
  const key = (model: ModelFit): [number, number] => {
    const fits = model.fit?.fits ?? false;
    switch (order) {
      case "fit":
        return [LEVELS.indexOf(levelOf(model)), fits ? -model.params : model.params];
      case "size":
        return [0, model.params];
      case "speed":
        return [fits ? 0 : 1, -(model.fit?.tokens_per_s ?? 0)];
    }
  };
  return [...models].sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    return x[0] - y[0] || x[1] - y[1] || a.title.localeCompare(b.title);
  });
}

/** The published models on the chosen card, and on every card, for the draft's wishes and the chosen examples. */
class CatalogueStore {
  fits = new Asked<ModelFit[]>();
  cards = new Asked<CardTable>();

  lookAtFits(): void {
    const [draft, stats, hardware] = [plan.draft, data.found?.stats ?? null, card.hardware];
    if (hardware === null) return;
    const config = () => forHardware(draft, hardware);
    void this.fits.ask([draft, stats, hardware], () => platform.modelFits({ config: config(), stats, hardware }));
  }

  lookAtCards(): void {
    const [draft, stats] = [plan.draft, data.found?.stats ?? null];
    // A wish for the exact base means another form on each card.
    const config = { ...draft, base: draft.base === "nf4" ? draft.base : null, memory_limit_bytes: null };
    void this.cards.ask([draft, stats], () => platform.cardTable({ config, stats }));
  }
}

export const catalogue = new CatalogueStore();
