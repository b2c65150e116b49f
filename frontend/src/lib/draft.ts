/** A configuration that is being made: pure functions from one to the next, whatever shows it. */

import type { BaseFormat } from "$lib/bindings/BaseFormat";
import type { ComputeDtype } from "$lib/bindings/ComputeDtype";
import type { Hardware } from "$lib/bindings/Hardware";
import type { Prices } from "$lib/bindings/Prices";
import type { Remedy } from "$lib/bindings/Remedy";
import type { RunConfig } from "$lib/bindings/RunConfig";
import type { Settings } from "$lib/bindings/Settings";

/** A configuration that leaves everything to the engine that it can propose. */
export function openConfig(): RunConfig {
  return {
    version: 1,
    name: "",
    model: "",
    data: { path: "", evaluation_path: null, columns: null, length: null, over_length: "drop", packing: null },
    base: null,
    compute: null,
    lora: {
      rank: 16,
      alpha: 32,
      dropout: 0,
      targets: ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    },
    micro_batch: null,
    accumulation: null,
    effective_batch: null,
    embedding_on_host: null,
    recompute: null,
    n_layers_eased: null,
    offload_inputs: null,
    mlp_rows: null,
    n_layers_streamed: null,
    n_layers_cached: null,
    optimizer: {
      kind: null,
      learning_rate: 2e-4,
      beta1: 0.9,
      beta2: 0.999,
      epsilon: 1e-8,
      weight_decay: 0,
      max_grad_norm: 1,
      schedule: "cosine",
      warmup_steps: null,
    },
    epochs: null,
    max_steps: null,
    evaluation: { fraction: 0.05, every_steps: null, patience: null, n_samples: 3 },
    checkpoints: { every_seconds: 300, every_steps: null, keep: 2 },
    rehearsal: true,
    governor: {
      temperature_limit_c: 87,
      power_limit_w: null,
      quiet_hours: null,
      yield_to_others: false,
      yield_bytes: 512 * 2 ** 20,
    },
    seed: 0,
    memory_limit_bytes: null,
    prices: null,
  };
}

/** A run takes energy whether or not it has a price: planned with these, that is said. */
export const NO_PRICES: Prices = { currency: "", per_kwh: null, per_hour: null, power_w: null };

/** The choices of a configuration, without which model, which data and what it is called. */
export function choicesOf(config: RunConfig): RunConfig {
  return { ...config, name: "", model: "", data: { ...config.data, path: "", evaluation_path: null, columns: null } };
}

/** "workshop answers.jsonl" → "workshop-answers". */
export function suggestName(file: string): string {
  return (
    file
      .replace(/\.[^.]*$/, "")
      .trim()
      .replace(/\s+/g, "-") || "run"
  );
}

/** Another rank; alpha / rank is the adapter's scale and stays. */
export function setRank(config: RunConfig, rank: number): void {
  config.lora.alpha = (config.lora.alpha / config.lora.rank) * rank;
  config.lora.rank = rank;
}

/** Other sequences at once, null for the engine's choice, as many to a step as before: the same training, other memory. */
export function setMicroBatch(config: RunConfig, microBatch: number | null, effective: number): void {
  config.micro_batch = microBatch;
  config.accumulation = microBatch === null ? null : Math.max(1, Math.round(effective / microBatch));
  config.effective_batch = microBatch === null ? effective : null;
}

/** Another number of times before a step: the person means another batch. */
export function setAccumulation(config: RunConfig, accumulation: number | null): void {
  config.accumulation = accumulation;
  if (accumulation !== null) config.effective_batch = null;
}

export function divisors(n: number): number[] {
  return Array.from({ length: n }, (_, i) => i + 1).filter((d) => n % d === 0);
}

/** The divisor of `n` that a slider moved from `from` to `to` means: the next one in its direction. */
export function nextDivisor(n: number, from: number, to: number): number {
  const all = divisors(n);
  if (to > from) return all.find((d) => d >= to) ?? n;
  if (to < from) return [...all].reverse().find((d) => d <= to) ?? 1;
  return from;
}

/** What a plan decides of what waits in system memory and how an MLP is divided. */
const openPlaces = { embedding_on_host: null, offload_inputs: null, n_layers_streamed: null, mlp_rows: null };

/** The configuration with a remedy of the engine applied; null where the remedy is no setting. */
export function applyRemedy(
  config: RunConfig,
  settings: Settings,
  remedy: Pick<Remedy, "setting" | "value">,
): RunConfig | null {
  const changed = structuredClone(config);
  const number = Number(remedy.value);
  switch (remedy.setting) {
    case "data.length":
      changed.data.length = number;
      return changed;
    case "lora.rank":
      setRank(changed, number);
      return changed;
    case "micro_batch":
      setMicroBatch(changed, number, settings.micro_batch * settings.accumulation);
      return changed;
    case "base":
      changed.base = remedy.value as RunConfig["base"];
      return changed;
    case "recompute":
      changed.recompute = remedy.value as RunConfig["recompute"];
      changed.n_layers_eased = null;
      return changed;
    case "host_memory":
      return Object.assign(changed, openPlaces);
    case "n_layers_cached":
      changed.n_layers_cached = number;
      return changed;
    case "compute":
      setCompute(changed, remedy.value as ComputeDtype);
      return changed;
    case "optimizer.kind":
      changed.optimizer.kind = remedy.value as RunConfig["optimizer"]["kind"];
      return changed;
    case "memory_limit_bytes":
      changed.memory_limit_bytes = number;
      return changed;
    default:
      return null;
  }
}

/** The form of the base that rounds nothing, for what the step computes in. */
export function exactBase(compute: ComputeDtype): BaseFormat {
  return compute === "f32" ? "f32" : "half";
}

/** What a step computes in unless the configuration says otherwise: bf16 on cards from compute capability 8.0, f16 on those of 7.5. */
export function computeOf(hardware: Hardware): ComputeDtype {
  const card = hardware.train_on === "card" ? hardware.cards[0] : undefined;
  if (!card) return "f32";
  const capability = Number.parseFloat(card.compute_capability ?? "");
  if (capability < 7.5) return "f32";
  return capability < 8 ? "f16" : "bf16";
}

/** What a step can compute in, the proposed first. */
export function computesIn(hardware: Hardware): ComputeDtype[] {
  const proposed = computeOf(hardware);
  return proposed === "bf16" ? ["bf16", "f16", "f32"] : proposed === "f16" ? ["f16", "f32"] : ["f32"];
}

/** A wish for what to compute in takes one for the exact base along. */
export function setCompute(config: RunConfig, compute: ComputeDtype) {
  config.compute = compute;
  if (config.base === "f32" || config.base === "half") config.base = exactBase(compute);
}

/** A wish for the exact base means another form on another device; the engine would call it a contradiction. */
export function forHardware(config: RunConfig, hardware: Hardware): RunConfig {
  if (config.base !== "f32" && config.base !== "half") return config;
  return { ...config, base: exactBase(config.compute ?? computeOf(hardware)) };
}
