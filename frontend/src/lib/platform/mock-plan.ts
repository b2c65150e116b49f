import type { Plan } from "$lib/bindings/Plan";
import type { Reason } from "$lib/bindings/Reason";
import type { RunConfig } from "$lib/bindings/RunConfig";

import { computeOf, exactBase, setRank } from "$lib/draft";
import { GIB } from "$lib/format";

import type { PlanRequest } from "./types";

const MIB = 2 ** 20;

function mockPrice(prices: RunConfig["prices"], board_w: number | null, seconds: number): Plan["price"] {
  if (prices === null) return null;
  const power_w = prices.power_w ?? (board_w === null ? 120 : 0.9 * board_w + 75);
  const energy_kwh = (power_w * seconds) / 3.6e6;
  return {
    currency: prices.currency,
    power_w,
    power_words:
      board_w === null
        ? "assumed for a home computer whose processor is busy"
        : `90 % of the ${board_w} W of the board, and 75 W assumed for the rest of the computer`,
    energy_kwh,
    energy_cost: prices.per_kwh === null ? null : energy_kwh * prices.per_kwh,
    rent_cost: prices.per_hour === null ? null : (seconds / 3600) * prices.per_hour,
  };
}

function mockHost(settings: Plan["settings"], { shape, hardware }: PlanRequest): Plan["host"] {
  if (hardware.train_on !== "card") return null;
  const bytes = settings.embedding_on_host ? shape.vocab_rows * shape.hidden * 2 : 0;
  const embeddings = { name: "embeddings", label: "Embeddings", family: "weights" as const, bytes, changed_by: "embedding_on_host" };
  const free_bytes = hardware.memory_available_bytes;
  return { items: bytes > 0 ? [embeddings] : [], bytes, budget_bytes: free_bytes / 2, free_bytes };
}

/** A plan in the engine's form with figures that follow the settings roughly; for page tests only. */
export function mockPlan(request: PlanRequest): Plan {
  const { config } = request;
  const hardware = request.hardware;
  const card = hardware.train_on === "card" ? hardware.cards[0] : undefined;
  const rank = config.lora.rank;
  const length = config.data.length ?? 512;
  const effective = config.effective_batch ?? 16;
  const micro = config.micro_batch ?? (config.accumulation ? Math.max(1, Math.round(16 / config.accumulation)) : 4);
  const accumulation = config.accumulation ?? Math.max(1, Math.round(effective / micro));
  const recompute = config.recompute ?? (config.memory_limit_bytes === null ? "n" : "c0");
  const optimizer = config.optimizer.kind ?? "adam_w32";
  const compute = config.compute ?? computeOf(hardware);
  const base = config.base ?? exactBase(compute);
  const tokens = (length * micro) / 2048;
  const keptFactor = recompute === "n" ? 1 : recompute === "c1" ? 0.42 : 0.16;
  const epochs = config.epochs ?? (config.max_steps ? (config.max_steps * micro * accumulation) / 454 : 3);
  const nSteps = config.max_steps ?? Math.ceil((454 * epochs) / (micro * accumulation) / 0.4);
  const items: Plan["items"] = [
    {
      name: "base_weights",
      label: { f32: "Base weights, f32", half: "Base weights, 16-bit", nf4: "Base weights, NF4" }[base],
      family: "weights",
      bytes: { f32: 405, half: 203, nf4: 56 }[base] * MIB,
      changed_by: "base",
    },
    {
      name: "embeddings",
      label: "Embeddings",
      family: "weights",
      bytes: (compute === "f32" ? 108 : 54) * MIB,
      changed_by: null,
    },
    { name: "norms", label: "Norms", family: "weights", bytes: 0.13 * MIB, changed_by: null },
    { name: "adapter", label: "LoRA adapter, f32", family: "trained", bytes: 1.16 * MIB * rank, changed_by: "rank" },
    { name: "gradients", label: "Gradients, f32", family: "trained", bytes: 1.16 * MIB * rank, changed_by: "rank" },
    {
      name: "optimizer",
      label: optimizer === "adam_w32" ? "Optimizer state, 32-bit" : "Optimizer state, 8-bit",
      family: "trained",
      bytes: (optimizer === "adam_w32" ? 2.32 : 0.6) * MIB * rank,
      changed_by: "optimizer",
    },
    {
      name: "kept",
      label: "Kept activations",
      family: "activations",
      bytes: 512 * MIB * tokens * keptFactor,
      changed_by: "recompute",
    },
    {
      name: "workspace",
      label: "Layer and loss workspace",
      family: "activations",
      bytes: 118 * MIB * tokens,
      changed_by: "length",
    },
    { name: "inputs", label: "Batch and positions", family: "activations", bytes: 0.4 * MIB, changed_by: "length" },
    { name: "runtime", label: "Threads and libraries", family: "runtime", bytes: 48 * MIB, changed_by: null },
    ...(card
      ? [{ name: "cuda_context", label: "CUDA context", family: "runtime", bytes: 310 * MIB, changed_by: null }]
      : []),
  ].map((i) => ({ ...i, bytes: Math.round(i.bytes) })) as Plan["items"];
  const planned = items.reduce((sum, i) => sum + i.bytes, 0);
  const total = card ? card.memory_bytes : hardware.memory_total_bytes;
  const others = card ? 0.7 * GIB : hardware.memory_total_bytes - hardware.memory_available_bytes;
  const margin = Math.round(Math.min(0.25 * GIB, total * 0.05));
  const freeForRun = Math.round(total - others) - margin;
  const budget = Math.min(freeForRun, config.memory_limit_bytes ?? Infinity);
  const limited = budget < freeForRun;
  const rate = card ? (card.tensor_flops_per_s ?? 0) / 4e9 : 432;
  const nTokens = nSteps * 1690;
  const time = {
    tokens_per_s: rate,
    basis: card ? ("calculated" as const) : ("measured" as const),
    basis_words: card ? "calculated from 40 % of 51.0 TFLOP/s" : "measured with this model on this hardware",
    plus_minus: card ? 0.15 : 0.05,
    step_s: 1690 / rate,
    evaluation_s: 40,
    total_s: nTokens / rate + 40,
    n_steps: nSteps,
    epochs,
    n_tokens: nTokens,
    n_tokens_per_step: 1690,
  };
  const settings: Plan["settings"] = {
    train_on: hardware.train_on,
    base,
    compute,
    embedding_on_host: card !== undefined && !request.shape.tied && (config.embedding_on_host ?? true),
    lora: config.lora,
    length,
    over_length: config.data.over_length,
    packing: config.data.packing ?? true,
    micro_batch: micro,
    accumulation,
    recompute,
    n_layers_eased: config.n_layers_eased ?? (recompute === "n" ? 0 : 9),
    offload_inputs: config.offload_inputs ?? false,
    mlp_rows: config.mlp_rows,
    n_layers_streamed: config.n_layers_streamed ?? 0,
    n_layers_cached: config.n_layers_cached ?? 0,
    head_rows: 256,
    optimizer,
    learning_rate: config.optimizer.learning_rate,
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-8,
    weight_decay: 0,
    max_grad_norm: 1,
    schedule: config.optimizer.schedule,
    warmup_steps: 6,
    n_steps: nSteps,
    evaluate_every_steps: config.evaluation.every_steps ?? 20,
    patience: null,
    n_samples: 3,
    sample_tokens: null,
    checkpoints: config.checkpoints,
    rehearsal: config.rehearsal,
    governor: config.governor,
    seed: 0,
  };
  const change = (value: string, bytes: number, seconds: number, edit: (c: RunConfig) => void) => {
    const changed = structuredClone(config);
    edit(changed);
    return { value, bytes: Math.round(bytes), time_s: seconds, n_over_length: 0, fits: true, config: changed };
  };
  const reason = (
    setting: string,
    value: string,
    code: string,
    why: string,
    if_changed: string,
    c: Reason["change"] = null,
  ): Reason => ({
    setting,
    value,
    fixed: false,
    code: `${setting}.${code}`,
    why,
    if_changed,
    change: c,
  });
  const remedies = (): Plan["remedies"] => {
    if (limited)
      return [
        {
          setting: "memory_limit_bytes",
          value: String(planned),
          words: `Raise the memory limit to ${(planned / GIB).toFixed(2)} GiB.`,
          saves_bytes: planned - budget,
          enough: planned <= freeForRun,
        },
      ];
    const found: Plan["remedies"] = [
      {
        setting: "other_programs",
        value: "",
        words: "Close other programs: 1.2 GiB more must be free on this device, and they hold 2.9 GiB now.",
        saves_bytes: planned - budget,
        enough: false,
      },
    ];
    if (config.n_layers_cached)
      found.push({
        setting: "n_layers_cached",
        value: "0",
        words: "Keep no weights dequantised: the same result, a little slower.",
        saves_bytes: 7 * MIB * config.n_layers_cached,
        enough: false,
      });
    if (micro > 1)
      found.push({
        setting: "micro_batch",
        value: "1",
        words: `Take 1 sequence at a time, ${micro * accumulation} to a step: the same training.`,
        saves_bytes: Math.round(630 * MIB * tokens * (1 - 1 / micro)),
        enough: false,
      });
    if (base !== "nf4")
      found.push({
        setting: "base",
        value: "nf4",
        words: "Hold the base in 4 bit (NF4): a little less exact.",
        saves_bytes: 349 * MIB,
        enough: true,
      });
    else
      found.push(
        {
          setting: "model",
          value: "",
          words: "Choose a smaller model: the least this one needs is 0.95 GiB.",
          saves_bytes: 0,
          enough: false,
        },
        {
          setting: "card",
          value: "rtx-4060-ti-16gb",
          words: "Use a card with 16 GiB: on RTX 4060 Ti, 16 GB it fits as you asked.",
          saves_bytes: 0,
          enough: true,
        },
      );
    return found;
  };
  const modes = { n: "Nothing (N)", c1: "Part (C1)", c0: "Most (C0)" };
  const easedTo = { n: "", c1: "nothing (n)", c0: "part (c1)" }[recompute];
  const over = length < 320 ? Math.round((320 - length) / 8) : 0;
  return {
    settings,
    items,
    planned_bytes: planned,
    budget_bytes: budget,
    budget: {
      device: card ? card.name : "system memory",
      total_bytes: total,
      others_bytes: total - freeForRun - margin,
      margin_bytes: margin,
      budget_bytes: budget,
      limited_by_hand: limited,
    },
    fits: planned <= budget,
    short_by_bytes: Math.max(0, planned - budget),
    host: mockHost(settings, request),
    remedies: planned <= budget ? [] : remedies(),
    reasons: [
      reason(
        "rank",
        String(rank),
        rank < 8 ? "small" : rank <= 16 ? "usual" : rank <= 64 ? "large" : "very_large",
        rank <= 16
          ? "Enough for tone, format and a task. All seven linear layers learn."
          : "Room for new habits; more than most tasks use. All seven linear layers learn.",
        `Rank ${rank * 2}: +${Math.round(5.8 * rank)} MiB, +1 min`,
        change(`Rank ${rank * 2}`, 5.8 * MIB * rank, 62, (c) => setRank(c, rank * 2)),
      ),
      reason(
        "length",
        String(length),
        "covers_all",
        "The longest example has 311 tokens: all fit whole.",
        "256 tokens: −310 MiB, 8 examples too long",
        change("256 tokens", -310 * MIB, -20, (c) => (c.data.length = 256)),
      ),
      reason(
        "packing",
        "packed",
        "short_examples",
        "Examples have 110 tokens on average: 454 fill 94 sequences. They never see each other.",
        "One by one: +3 min",
        change("One by one", 0, 180, (c) => (c.data.packing = false)),
      ),
      reason(
        "batch",
        `${micro} × ${accumulation}`,
        "accumulated",
        `${accumulation} micro-batches of ${micro} train exactly like one batch of ${micro * accumulation}.`,
        "8 × 2: +630 MiB, −30 s",
        change("8 × 2", 630 * MIB, -30, (c) => ((c.micro_batch = 8), (c.accumulation = 2))),
      ),
      reason(
        "recompute",
        settings.n_layers_eased > 0
          ? `${modes[recompute]}; ${easedTo} in ${settings.n_layers_eased} of 30 layers`
          : modes[recompute],
        "free_memory",
        "Everything kept fits, and nothing is computed twice.",
        "Part (C1): −297 MiB, +2 min",
        change("Part (C1)", -297 * MIB, 130, (c) => (c.recompute = "c1")),
      ),
      reason(
        "optimizer",
        optimizer,
        "small_state",
        `32-bit state takes 0.2 % of ${card ? "the card" : "system memory"}; 8-bit state 0.1 %.`,
        "8-bit: −28 MiB",
        change("8-bit", -28 * MIB, 0, (c) => (c.optimizer.kind = "adam_w8")),
      ),
      reason(
        "base",
        base,
        "fits",
        "The exact base fits, so nothing is rounded.",
        "NF4 base: −349 MiB, +1 min",
        change("NF4 base", -349 * MIB, 50, (c) => (c.base = "nf4")),
      ),
      reason(
        "learning_rate",
        "2e-4",
        "usual",
        "Usual for LoRA, at batch 16 too.",
        "1e-4: learns slower, forgets less. No cost.",
      ),
      reason("warmup", "6 steps", "share", "3 % of 212 steps.", "Longer: gentler start. No cost."),
      reason(
        "epochs",
        "3",
        "usual",
        "3 passes over 454 examples, 212 steps; the best evaluation is kept.",
        "106 steps: −7 min",
        change("106 steps", 0, -420, (c) => (c.max_steps = 106)),
      ),
      reason(
        "evaluation",
        "every 20 steps",
        "held_out",
        "24 examples held out. Also saves every 5 min 00 s.",
        "Every 10 steps: +1 min",
        change("Every 10 steps", 0, 60, (c) => (c.evaluation.every_steps = 10)),
      ),
    ],
    warnings: [],
    time,
    price: mockPrice(config.prices, card?.board_power_w ?? null, time.total_s),
    data: { n_train: 454, n_held_out: 24, n_over_length: over, max_tokens: 311, n_sequences: 94 },
    n_trained: 305_000 * rank,
    disk_bytes: 360 * MIB,
    disk: {
      checkpoints_bytes: 59 * MIB,
      checkpoint_bytes: 20 * MIB,
      adapter_bytes: 19 * MIB,
      merged_bytes: 258 * MIB,
    },
    alternatives:
      planned <= budget
        ? [
            {
              name: "fastest",
              title: "Fastest",
              words: "8 × 2, everything kept",
              same: false,
              config: { ...structuredClone(config), micro_batch: 8, accumulation: 2 },
              settings,
              planned_bytes: planned + 630 * MIB,
              fits: true,
              time: { ...time, total_s: time.total_s * 0.94 },
            },
            {
              name: "leave_room",
              title: "Leave room",
              words: "only layer inputs kept",
              same: false,
              config: { ...structuredClone(config), memory_limit_bytes: Math.round(planned - 200 * MIB) },
              settings: { ...settings, recompute: "c0" },
              planned_bytes: planned - 430 * MIB,
              fits: true,
              time: { ...time, total_s: time.total_s * 1.19 },
            },
          ]
        : [],
  };
}

/** Without what other choices would do. */
export function outlineOf(plan: Plan): Plan {
  const reasons = plan.reasons.map((reason) => (reason.change ? { ...reason, change: null, if_changed: "" } : reason));
  return { ...plan, reasons, remedies: [], alternatives: [] };
}
