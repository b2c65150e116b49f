import type { Hardware } from "$lib/bindings/Hardware";
import type { DataStats } from "$lib/bindings/DataStats";
import type { ErrorReport } from "$lib/bindings/ErrorReport";
import type { RunConfig } from "$lib/bindings/RunConfig";
import { forHardware } from "$lib/draft";
import { toReport } from "$lib/errors";
import { platform, type ModelFit } from "$lib/platform";

import { card } from "./card.svelte";
import { data } from "./data.svelte";
import { plan } from "./plan.svelte";

/** How a model sits on a card, the best first. */
export const LEVELS = ["whole", "recompute", "large", "refused"] as const;
export type Level = (typeof LEVELS)[number];

export function levelOf({ fit }: ModelFit): Level {
  if (fit === null) return "refused";
  if (!fit.fits) return "large";
  return fit.recompute === "n" ? "whole" : "recompute";
}

export type Order = "fit" | "size" | "speed";

/**
 * By fit: of those that fit the most capable first, which is the largest; of those that do not, the nearest. By speed:
 * what fits comes first, a rate that cannot be had helps nobody.
 */
export function ordered(models: readonly ModelFit[], order: Order): ModelFit[] {
  const key = (model: ModelFit): [number, number] => {
    const level = levelOf(model);
    const fits = level === "whole" || level === "recompute";
    switch (order) {
      case "fit":
        return [LEVELS.indexOf(level), fits ? -model.params : model.params];
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

/** The published models on the chosen card, for the draft's wishes and the chosen examples. */
class CatalogueStore {
  models = $state.raw<ModelFit[]>([]);
  error = $state.raw<ErrorReport | null>(null);

  /** What the last answer was given to. */
  #asked: readonly [RunConfig, DataStats | null, Hardware] | null = null;

  /** Asks anew where the card, the examples or the draft are others than the last time. */
  async refresh(): Promise<void> {
    const hardware = card.hardware;
    if (hardware === null) return;
    const asked = [plan.draft, data.found?.stats ?? null, hardware] as const;
    if (this.#asked?.every((value, i) => value === asked[i])) return;
    this.#asked = asked;
    try {
      const config = forHardware(plan.draft, hardware);
      const models = await platform.modelFits({ config, stats: asked[1], hardware });
      if (this.#asked !== asked) return;
      this.models = models;
      this.error = null;
    } catch (error) {
      if (this.#asked !== asked) return;
      // The next look asks again.
      this.#asked = null;
      this.error = toReport(error);
    }
  }
}

export const catalogue = new CatalogueStore();
