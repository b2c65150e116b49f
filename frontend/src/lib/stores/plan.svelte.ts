import type { ErrorReport } from "$lib/bindings/ErrorReport";
import type { Hardware } from "$lib/bindings/Hardware";
import type { Plan } from "$lib/bindings/Plan";
import type { RunConfig } from "$lib/bindings/RunConfig";
import { likeMemory, withMemory } from "$lib/cards";
import { applyRemedy, forHardware, NO_PRICES, openConfig, suggestName } from "$lib/draft";
import { toReport } from "$lib/errors";
import { platform, type PlanRequest } from "$lib/platform";

import { card } from "./card.svelte";
import { data } from "./data.svelte";
import { model } from "./model.svelte";
import { settings } from "./settings.svelte";

/** Another card, beside the one that is planned for: a known one, or any of a memory size. */
export type Compared = { card: string } | { gib: number };

/** The wishes rest when none came for so long: then it is worth asking what other choices would do. */
const REST_MS = 120;

/** An outline with what other choices would do as it was last known. */
function filled(outline: Plan, last: Plan): Plan {
  const before = new Map(last.reasons.map((reason) => [reason.setting, reason]));
  return {
    ...outline,
    remedies: outline.fits ? [] : last.remedies,
    alternatives: last.alternatives,
    reasons: outline.reasons.map((reason) => {
      const { change = null, if_changed = "" } = before.get(reason.setting) ?? {};
      return reason.if_changed === "" ? { ...reason, change, if_changed } : reason;
    }),
  };
}

/** Runs `work` when nothing else wants the thread. */
function whenIdle(work: () => void): void {
  if (typeof requestIdleCallback === "function") requestIdleCallback(work, { timeout: 400 });
  else setTimeout(work, 20);
}

/** The plan of the draft: asked again at every change of a wish, the data, the model or the card. */
class PlanStore {
  name = $state("");
  /** What is wished; model, data path and name are filled in when it is asked for. */
  draft = $state.raw<RunConfig>(openConfig());
  plan = $state.raw<Plan | null>(null);
  /** The last plan of this model, data and card, so that a refused wish can be taken back where it was made. */
  last = $state.raw<Plan | null>(null);
  error = $state.raw<ErrorReport | null>(null);
  /** A plan is awaited, this one or one elsewhere that somebody looks at: what is shown is of an earlier wish. */
  busy = $state(false);
  /** Plans of the same draft for other computers, by the key they were wanted under; null where there is none. */
  elsewhere = $state.raw<Record<string, Plan | null>>({});
  compared = $state.raw<Compared | null>(null);

  /** Counts changes: what was asked for an earlier one is old. */
  #revision = 0;
  #asking = false;
  /** What is shown of other choices is of an earlier wish, and is asked for when this runs out. */
  #rest: ReturnType<typeof setTimeout> | null = null;
  /** Shape, data and computer of the last question: with others an earlier plan is not old but wrong. */
  #ground: unknown[] = [];
  #wanted = new Map<string, { hardware: Hardware; times: number }>();
  #revisionOf = new Map<string, number>();
  #idle = false;

  ready = $derived(model.found !== null && data.found !== null && card.hardware !== null);
  touched = $derived(JSON.stringify(this.draft) !== JSON.stringify(openConfig()));
  runName = $derived(this.name.trim() || suggestName(data.name ?? "run"));

  /** The computer beside which the plan is shown, its key among the plans elsewhere, and the card whose speed it has. */
  beside = $derived.by<{ key: string; hardware: Hardware; like: string | null } | null>(() => {
    const { compared } = this;
    if (compared === null) return null;
    if ("card" in compared) {
      const known = card.profiles.find(({ id }) => id === compared.card);
      return known ? { key: known.id, hardware: known.hardware, like: null } : null;
    }
    const like = likeMemory(card.profiles, compared.gib);
    if (like === null) return null;
    const hardware = withMemory(like.hardware, `${compared.gib} GB`, compared.gib);
    return { key: `any-${compared.gib}`, hardware, like: like.name };
  });

  config(): RunConfig | null {
    if (model.path === null || data.path === null) return null;
    const config = {
      ...this.draft,
      name: this.runName,
      model: model.path,
      data: { ...this.draft.data, path: data.path },
      prices: settings.prices,
    };
    return card.hardware === null ? config : forHardware(config, card.hardware);
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

  /** Takes what the shown plan offers, unless a wish came since: that would be lost. */
  accept(config: RunConfig): void {
    if (!this.#asking && this.#rest === null) this.take(config);
  }

  /** Takes the choices of kept settings; which columns and which evaluation file belong to the data and stay. */
  choose(choices: RunConfig): void {
    const { columns, evaluation_path } = this.draft.data;
    this.take({ ...choices, data: { ...choices.data, columns, evaluation_path } });
  }

  /** Applies a remedy of the plan that is shown; false where it is no setting. */
  fix(remedy: { setting: string; value: string }): boolean {
    const settings = (this.plan ?? this.last)?.settings;
    const changed = settings ? applyRemedy(this.draft, settings, remedy) : null;
    if (changed !== null) this.draft = changed;
    return changed !== null;
  }

  reset(): void {
    this.draft = openConfig();
  }

  /** There is nothing to plan for any more. */
  forget(): void {
    this.#revision++;
    this.#stir();
    this.#clear();
    this.busy = false;
  }

  #clear(): void {
    this.plan = null;
    this.last = null;
    this.error = null;
    this.elsewhere = {};
    this.#revisionOf.clear();
  }

  /** What is asked for the draft; null while something is missing. */
  request(): PlanRequest | null {
    const config = this.config();
    const hardware = card.hardware;
    if (config === null || hardware === null || model.shape === null || data.found === null) return null;
    const priced = { ...config, prices: config.prices ?? NO_PRICES };
    return { config: priced, shape: model.shape, stats: data.found.stats, hardware };
  }

  #stir(): void {
    if (this.#rest !== null) clearTimeout(this.#rest);
    this.#rest = null;
  }

  /**
   * Asks at once, for the outline where there is a plan to fill it with; the whole follows when the wishes rest. While
   * an answer is awaited the latest change waits, and those before it are passed over.
   */
  async replan(whole = false): Promise<void> {
    this.#revision++;
    this.#stir();
    this.busy = true;
    if (this.#asking) return;
    this.#asking = true;
    let asked;
    let outlined;
    do {
      asked = this.#revision;
      outlined = await this.#ask(asked, whole);
      whole = false;
    } while (asked !== this.#revision);
    this.#asking = false;
    if (outlined) this.#rest = setTimeout(() => void this.replan(true), REST_MS);
    else this.#askElsewhere();
  }

  /** True where the answer was an outline. */
  async #ask(asked: number, whole: boolean): Promise<boolean> {
    const request = this.request();
    if (request === null) {
      this.#clear();
      return false;
    }
    const { shape, stats, hardware } = request;
    if (this.#ground[0] !== shape || this.#ground[1] !== stats) {
      this.elsewhere = {};
      this.#revisionOf.clear();
    }
    if (this.#ground.some((value, i) => value !== [shape, stats, hardware][i])) this.last = null;
    this.#ground = [shape, stats, hardware];
    const isSame = () => shape === model.shape && stats === data.found?.stats && hardware === card.hardware;
    const { last } = this;
    const outline = !whole && last !== null;
    try {
      const answer = await platform.plan(request, outline);
      // While a slider moves, the answer before the last is nearer to it than what is on screen.
      if (!isSame()) return false;
      this.plan = this.last = outline ? filled(answer, last) : answer;
      this.error = null;
      return outline;
    } catch (error) {
      if (asked === this.#revision) {
        this.plan = null;
        this.error = toReport(error);
      }
      return false;
    }
  }

  /**
   * Somebody looks at the plan for another computer. It is made when the plan itself is there and nothing else is to
   * be done, one at a time, until what is returned is called.
   */
  want(key: string, hardware: Hardware): () => void {
    const wanted = this.#wanted.get(key);
    if (wanted?.hardware === hardware) wanted.times++;
    else {
      this.#wanted.set(key, { hardware, times: (wanted?.times ?? 0) + 1 });
      this.#revisionOf.delete(key);
    }
    this.#askElsewhere();
    return () => {
      const left = this.#wanted.get(key);
      if (left && --left.times <= 0) this.#wanted.delete(key);
    };
  }

  #askElsewhere(): void {
    if (this.#idle || this.#asking || this.#rest !== null) return;
    this.busy = this.#next() !== null;
    if (!this.busy) return;
    this.#idle = true;
    whenIdle(() => void this.#askNext());
  }

  #next(): [string, Hardware] | null {
    for (const [key, { hardware }] of this.#wanted)
      if (this.#revisionOf.get(key) !== this.#revision) return [key, hardware];
    return null;
  }

  async #askNext(): Promise<void> {
    const next = this.#asking ? null : this.#next();
    const request = next && this.request();
    if (next && request) {
      const [key, hardware] = next;
      const revision = this.#revision;
      const config = forHardware(request.config, hardware);
      const plan = await platform.plan({ ...request, config, hardware }, true).catch(() => null);
      if (revision === this.#revision) {
        this.#revisionOf.set(key, revision);
        this.elsewhere = { ...this.elsewhere, [key]: plan };
      }
    }
    this.#idle = false;
    if (request) this.#askElsewhere();
    else this.busy = this.#asking;
  }
}

export const plan = new PlanStore();
