import { platform, type Defaults } from "$lib/platform";

import { card } from "./card.svelte";
import { chat } from "./chat.svelte";
import { data } from "./data.svelte";
import { exports } from "./exports.svelte";
import { model } from "./model.svelte";
import { plan } from "./plan.svelte";
import { route, STEPS, type Screen } from "./route.svelte";
import { run } from "./run.svelte";
import { runs } from "./runs.svelte";

const KEY = "hearth.session";

const SCREENS: readonly Screen[] = [...STEPS, "start", "runs", "settings"];

interface Remembered {
  model: string | null;
  data: string | null;
  run: string | null;
  screen: Screen | null;
}

function recall(): Remembered {
  try {
    const stored = JSON.parse(localStorage.getItem(KEY) ?? "{}") as Partial<Remembered>;
    return {
      model: stored.model ?? null,
      data: stored.data ?? null,
      run: stored.run ?? null,
      screen: SCREENS.find((screen) => screen === stored.screen) ?? null,
    };
  } catch {
    return { model: null, data: null, run: null, screen: null };
  }
}

export type Obstacle = "plan" | "memory" | "elsewhere" | "run";

/** What concerns several stores at once: starting the window, opening a run, beginning a new one. */
class Session {
  defaults = $state.raw<Defaults | null>(null);
  /** Everything known from before is back; only from then on is it remembered anew. */
  ready = $state(false);
  #starting = false;

  /** Runs that live beside the one that is open. */
  others = $derived(runs.running.filter(({ id }) => id !== run.id));
  /** Processes that hold memory here: that of the open run until it has ended, and others'. */
  nLiving = $derived(this.others.length + Number(run.following));

  /** Why the draft cannot be started, as far as its plan is known; null where it can. */
  obstacle = $derived.by<Obstacle | null>(() => {
    if (plan.plan === null) return "plan";
    if (!plan.plan.fits) return "memory";
    if (!card.isHere) return "elsewhere";
    return run.starting || this.nLiving > 0 ? "run" : null;
  });

  async begin(): Promise<void> {
    const before = recall();
    const hardware = card.detect();
    const known = platform
      .defaults()
      .then((defaults) => {
        this.defaults = defaults;
        model.bundled = defaults.bundled_model;
        card.runsDir = defaults.runs_dir;
        if (exports.folder === "") exports.folder = defaults.export_dir;
      })
      .catch(() => undefined);
    await Promise.all([runs.refresh(), known]);

    // A run named on the command line, or one that lives, is what the window is opened for; else the one that was open.
    const living = runs.running[0];
    const named = runs.list.find((r) => r.id === this.defaults?.open_run);
    const open = named ?? living ?? runs.list.find((r) => r.id === before.run);
    if (open) {
      const screen =
        open.state === "running" ? "train" : open.id === before.run && before.screen ? before.screen : "train";
      await this.openRun(open.id, screen);
    } else if (before.model !== null) {
      route.go(before.screen === "start" || before.screen === null ? "model" : before.screen);
      await model.open(before.model);
      if (before.data !== null) await data.open(before.data);
    }
    await Promise.all([hardware, known]);
    this.ready = true;
  }

  remember(): void {
    const now: Remembered = { model: model.path, data: data.path, run: run.id, screen: route.screen };
    localStorage.setItem(KEY, JSON.stringify(now));
  }

  /** Shows a run of the list, with the model, data and settings it was started with. */
  async openRun(id: string, screen: Screen = "train"): Promise<void> {
    exports.reset();
    await chat.close();
    route.go(screen);
    await run.open(id);
  }

  /** Fills the draft with what an opened run was started with, where the draft is of something else. */
  async adopt(): Promise<void> {
    const config = run.files.config;
    if (config === null) return;
    plan.take(config);
    plan.name = config.name;
    if (model.path !== config.model) await model.open(config.model);
    if (data.path !== config.data.path || data.found === null) await data.open(config.data.path);
  }

  async newRun(): Promise<void> {
    await run.close();
    await chat.close();
    exports.reset();
    model.clear();
    data.clear();
    plan.reset();
    plan.name = "";
    route.go("start");
  }

  /** Model and examples that come with Hearth, up to the plan. */
  async demo(): Promise<void> {
    const { bundled_model, demo_data, demo_config } = this.defaults ?? {};
    if (!bundled_model || !demo_data) return;
    if (run.id !== null) await run.close();
    if (demo_config) {
      plan.take(demo_config);
      plan.name = demo_config.name;
    }
    route.go("data");
    if (await model.open(bundled_model)) await data.open(demo_data);
    else route.go("model");
  }

  async start(): Promise<void> {
    if (this.#starting) return;
    this.#starting = true;
    try {
      // A wish of this moment has no plan yet, and the one that is shown says nothing of it.
      await plan.replan();
      const config = plan.config();
      if (config === null || this.obstacle !== null) return;
      exports.reset();
      await chat.close();
      route.go("train");
      if (!(await run.start(config)) && run.id === null) route.go("plan");
      await runs.refresh();
    } finally {
      this.#starting = false;
    }
  }

  /** A dropped path: examples where data is expected or the name says so, else a model. */
  async drop(path: string): Promise<void> {
    const looksLikeModel = /\.gguf$/i.test(path) || !/\.[a-z0-9]{1,6}$/i.test(path);
    if (run.id !== null && !run.alive) await run.close();
    if (looksLikeModel || (route.screen === "model" && !/\.(jsonl?|csv|txt|ndjson)$/i.test(path))) {
      route.go("model");
      await model.open(path);
    } else {
      route.go("data");
      await data.open(path);
    }
  }
}

export const session = new Session();
