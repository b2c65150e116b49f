import type { ErrorReport } from "$lib/bindings/ErrorReport";
import type { Plan } from "$lib/bindings/Plan";
import type { RunConfig } from "$lib/bindings/RunConfig";
import { toReport } from "$lib/errors";
import { platform } from "$lib/platform";

import { card } from "./card.svelte";
import { data } from "./data.svelte";
import { model } from "./model.svelte";

/** A configuration that leaves everything to the engine that it can propose. */
export function openConfig(): RunConfig {
  return {
    version: 1,
    name: "",
    model: "",
    data: { path: "", evaluation_path: null, columns: null, length: null, over_length: "drop", packing: null },
    base: null,
    lora: {
      rank: 16,
      alpha: 32,
      dropout: 0,
      targets: ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    },
    micro_batch: null,
    accumulation: null,
    effective_batch: null,
    recompute: null,
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
    seed: 0,
    memory_limit_bytes: null,
  };
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

/** The plan of the draft: asked again at every change of a wish, the data, the model or the card. */
class PlanStore {
  name = $state("");
  /** What is wished; model, data path and name are filled in when it is asked for. */
  draft = $state.raw<RunConfig>(openConfig());
  plan = $state.raw<Plan | null>(null);
  error = $state.raw<ErrorReport | null>(null);
  loading = $state(false);
  /** The plan for every preset of the same draft, by its id; null where there is none. */
  elsewhere = $state.raw<Record<string, Plan | null>>({});
  #asked = 0;

  ready = $derived(model.found !== null && data.found !== null && card.hardware !== null);
  touched = $derived(JSON.stringify(this.draft) !== JSON.stringify(openConfig()));
  runName = $derived(this.name.trim() || suggestName(data.name ?? "run"));

  config(): RunConfig | null {
    if (model.path === null || data.path === null) return null;
    return {
      ...this.draft,
      name: this.runName,
      model: model.path,
      data: { ...this.draft.data, path: data.path },
    };
  }

  /** Changes the draft; null in an open field gives it back to the engine. */
  wish(change: (draft: RunConfig) => void): void {
    const draft = structuredClone(this.draft);
    change(draft);
    this.draft = draft;
  }

  /** Takes a whole configuration the engine offered, without what the other stores know. */
  take(config: RunConfig): void {
    this.draft = { ...config, name: "", model: "", data: { ...config.data, path: "" } };
  }

  reset(): void {
    this.draft = openConfig();
  }

  /** There is nothing to plan for any more. */
  forget(): void {
    this.#asked++;
    this.plan = null;
    this.error = null;
    this.loading = false;
    this.elsewhere = {};
  }

  async replan(): Promise<void> {
    const asked = ++this.#asked;
    const config = this.config();
    const hardware = card.hardware;
    if (config === null || hardware === null || model.shape === null || data.found === null) {
      this.forget();
      return;
    }
    this.loading = true;
    const request = { config, shape: model.shape, stats: data.found.stats };
    try {
      const plan = await platform.plan({ ...request, hardware });
      if (asked !== this.#asked) return;
      this.plan = plan;
      this.error = null;
    } catch (error) {
      if (asked !== this.#asked) return;
      this.plan = null;
      this.error = toReport(error);
    } finally {
      if (asked === this.#asked) this.loading = false;
    }
    const elsewhere: Record<string, Plan | null> = {};
    await Promise.all(
      card.profiles.map(async ({ id, hardware }) => {
        elsewhere[id] = await platform.plan({ ...request, hardware }).catch(() => null);
      }),
    );
    if (asked === this.#asked) this.elsewhere = elsewhere;
  }
}

export const plan = new PlanStore();
