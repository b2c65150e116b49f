import type { CardTable } from "$lib/bindings/CardTable";
import type { Largest } from "$lib/bindings/Largest";
import type { TableCell } from "$lib/bindings/TableCell";
import { GIB } from "$lib/format";

import { mockPlan } from "./mock-plan";
import { mockProfiles } from "./mock-profiles";
import type { CardTableRequest, FitsRequest, ModelFit, PlanRequest } from "./types";

import catalogue from "../../../../assets/models.toml?raw";

/** The published models of the engine's own file with figures that follow size and card roughly; for page tests only. */
export function mockModelFits({ config, stats, hardware }: FitsRequest): ModelFit[] {
  const card = hardware.train_on === "card" ? hardware.cards[0] : undefined;
  const budget = card ? card.memory_bytes * 0.92 - 0.3 * GIB : hardware.memory_available_bytes;
  const length = config.data.length ?? stats?.max_tokens ?? 2048;
  const models = catalogue.split(/^\[\[model\]\]$/m).slice(1);
  return models.map((text) => {
    const word = (key: string) => new RegExp(`^${key} = "(.*)"$`, "m").exec(text)?.[1];
    const params = Number((/^published_params = ([\d_]+)$/m.exec(text)?.[1] ?? "0").replace(/_/g, ""));
    const longest = Number((/^max_positions = ([\d_]+)$/m.exec(text)?.[1] ?? "0").replace(/_/g, ""));
    const licence = /^licence = \{ name = "(.*)", accept = (true|false) \}$/m.exec(text);
    const whole = params * (params > 2e9 ? 0.6 : 2.2) + 3e5 * length + 0.9 * GIB + params * length * 1e-4;
    const small = whole - params * length * 0.8e-4;
    const recompute = whole <= budget ? ("n" as const) : ("c0" as const);
    const planned = Math.round(recompute === "n" ? whole : small);
    const rate = (card?.tensor_flops_per_s ?? 4e11) / (params * 5) / (recompute === "n" ? 2.2 : 3);
    const tokens = (stats?.n_tokens ?? 1000 * 2048) * 3;
    const refused = length > longest;
    return {
      id: word("id") ?? "",
      title: word("title") ?? "",
      hub: word("hub") ?? "",
      instruct: word("instruct") ?? null,
      licence: licence?.[1] ?? "",
      accept: licence?.[2] === "true",
      params,
      download_bytes: params * 2,
      fit: refused
        ? null
        : {
            fits: planned <= budget,
            planned_bytes: planned,
            budget_bytes: Math.round(budget),
            tokens_per_s: rate,
            total_s: tokens / rate,
            base: params > 2e9 ? "nf4" : "half",
            recompute,
            offloads: card !== undefined && recompute === "c0" && planned > 0.9 * budget,
            length,
          },
      refused: refused
        ? {
            code: "plan.length_past_model",
            message: `length ${length} is past the model's limit of ${longest} tokens`,
            next_step: "Choose a shorter length, or leave it open.",
          }
        : null,
    };
  });
}

export function mockCardTable(request: CardTableRequest, here: FitsRequest["hardware"]): CardTable {
  const profiles = mockProfiles(here);
  const columns = profiles.map(({ hardware }) => mockModelFits({ ...request, hardware }));
  const cell = ({ fit, refused }: ModelFit): TableCell =>
    fit === null
      ? { refused: refused?.message ?? "" }
      : {
          planned: {
            ...fit,
            fit: !fit.fits ? "no" : fit.recompute === "n" ? "comfortable" : "recomputing",
            price: null,
          },
        };
  return {
    cards: profiles.map(({ id, name, hardware }) => ({
      id,
      name,
      memory_bytes: hardware.cards[0]?.memory_bytes ?? null,
      release_price_usd: hardware.cards[0]?.release_price_usd ?? null,
    })),
    rows: (columns[0] ?? []).map(({ id, title }, row) => ({
      id,
      title,
      cells: columns.map((column) => cell(column[row] as ModelFit)),
    })),
  };
}

export function mockLargest(request: PlanRequest): Largest[] {
  const { settings, budget, time } = mockPlan(request);
  const of = (quantity: Largest["quantity"], value: number, edit: (config: Largest["config"]) => void): Largest => {
    const config = structuredClone(request.config);
    edit(config);
    const { planned_bytes } = mockPlan({ ...request, config });
    const model = quantity === "model" ? "llama-3.1-8b" : null;
    const bound = quantity === "length" ? "model" : "memory";
    const next =
      bound === "memory" ? { value: value * 2, model: model && "llama-2-13b", planned_bytes: budget.budget_bytes * 1.2 } : null;
    const words = "The most that fits.";
    return { quantity, value, model, bound, next, words, settings, planned_bytes, budget, time, usual: time, config };
  };
  return [
    of("length", 8192, (config) => ((config.data.length = 8192), (config.micro_batch = 1))),
    of("rank", 256, (config) => (config.lora.rank = 256)),
    of("micro_batch", 48, (config) => ((config.micro_batch = 48), (config.accumulation = 1))),
    of("model", 8.03e9, () => undefined),
  ];
}
