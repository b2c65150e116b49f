import type { FitsRequest, ModelFit } from "./types";

import catalogue from "../../../../assets/models.toml?raw";

const GIB = 2 ** 30;

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
