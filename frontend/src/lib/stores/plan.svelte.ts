import type { DataStats } from "$lib/bindings/DataStats";
import type { ErrorReport } from "$lib/bindings/ErrorReport";
import type { Hardware } from "$lib/bindings/Hardware";
import type { ModelShape } from "$lib/bindings/ModelShape";
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

/** The plan of the draft for another computer, and the plan beside which it was made; or why there is none. */
export interface Elsewhere {
  plan: Plan | null;
  beside: Plan | null;
  refused: ErrorReport | null;
}

/** An alternative that was taken: what it was an alternative to stays on offer. */
interface Choice {
  name: string;
  /** The wishes before, their plan, and whether any was the person's. */
  from: RunConfig;
  plan: Plan;
  wished: boolean;
  /** The wishes since. */
  taken: RunConfig;
}

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
  /** Plans of the same draft for other computers, by the key they were wanted under. */
  elsewhere = $state.raw<Record<string, Elsewhere>>({});
  compared = $state.raw<Compared | null>(null);
  #choice = $state.raw<Choice | null>(null);

  /** Counts changes: what was asked for an earlier one is old. */
  #revision = 0;
  /** The answers that are awaited. */
  #answers: Promise<void> | null = null;
  /** What is shown of other choices is of an earlier wish, and is asked for when this runs out. */
  #rest: ReturnType<typeof setTimeout> | null = null;
  /** Shape, data and computer of the last question: with others an earlier plan is not old but wrong. */
  #ground: [ModelShape?, DataStats?, Hardware?] = [];
  #wanted = new Map<string, { hardware: Hardware; times: number }>();
  #revisionOf = new Map<string, number>();
  #idle = false;

  ready = $derived(model.found !== null && data.found !== null && card.hardware !== null);
  /** The alternative that the draft is; null again with another wish. */
  choice = $derived(this.#choice?.taken === this.draft ? this.#choice : null);
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
    if (this.#answers === null && this.#rest === null) this.take(config);
  }

  /** Takes an alternative, or with null what they are alternatives to, which is kept until another wish. */
  pick(name: string | null): void {
    const { choice } = this;
    const plan = choice?.plan ?? this.plan;
    const [from, wished] = choice ? [choice.from, choice.wished] : [this.draft, this.touched];
    if (name === null) {
      this.draft = from;
      return;
    }
    const config = plan?.alternatives.find((alternative) => alternative.name === name)?.config;
    if (config === undefined || plan === null) return;
    if (choice) this.take(config);
    else this.accept(config);
    if (this.draft !== from) this.#choice = { name, from, plan, wished, taken: this.draft };
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
  replan(whole = false): Promise<void> {
    this.#revision++;
    this.#stir();
    this.busy = true;
    return (this.#answers ??= this.#askUntilLatest(whole));
  }

  async #askUntilLatest(whole: boolean): Promise<void> {
    let asked;
    let outlined;
    do {
      asked = this.#revision;
      outlined = await this.#ask(asked, whole);
      whole = false;
    } while (asked !== this.#revision);
    this.#answers = null;
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
    // What is free may have changed, what the alternatives are to has not.
    if (this.#ground[0] !== shape || this.#ground[1] !== stats || this.#ground[2]?.name !== hardware.name)
      this.#choice = null;
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
    if (this.#idle || this.#answers !== null || this.#rest !== null) return;
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
    const next = this.#answers === null ? this.#next() : null;
    const request = next && this.request();
    if (next && request) {
      const [key, hardware] = next;
      const revision = this.#revision;
      // A limit is one of the memory here.
      const config = { ...forHardware(request.config, hardware), memory_limit_bytes: null };
      const answer = await platform.plan({ ...request, config, hardware }, true).then(
        (plan) => ({ plan, refused: null }),
        (error: unknown) => ({ plan: null, refused: toReport(error) }),
      );
      if (revision === this.#revision) {
        this.#revisionOf.set(key, revision);
        this.elsewhere = { ...this.elsewhere, [key]: { ...answer, beside: this.plan } };
      }
    }
    this.#idle = false;
    if (request) this.#askElsewhere();
    else this.busy = this.#answers !== null;
  }
}

export const plan = new PlanStore();
