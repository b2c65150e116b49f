import type { ErrorReport } from "$lib/bindings/ErrorReport";
import type { GovernorConfig } from "$lib/bindings/GovernorConfig";
import type { RunConfig } from "$lib/bindings/RunConfig";
import { toReport } from "$lib/errors";
import { platform, type RunFiles, type Stream } from "$lib/platform";

import { apply, emptyRun, type RunState } from "./run-state";

export type Asked = "pause" | "continue" | "stop" | "resume" | null;
export type RunStatus =
  "none" | "starting" | "running" | "paused" | "finished" | "stopped" | "failed" | "interrupted";

/** The engine's name of the phase in which it holds. */
const PAUSED = "pause";
const NO_FILES: RunFiles = { plan: null, config: null, settings: null, limits: null };

/** The run that is open: its events, folded. The engine is the truth; this store only replays and asks. */
class RunStore {
  id = $state<string | null>(null);
  /** Replaced at every batch of events, so that whoever shows it is told. */
  state = $state.raw<RunState>(emptyRun());
  files = $state.raw<RunFiles>(NO_FILES);
  /** The event stream is being followed: the process is alive, as far as the engine knows. */
  following = $state(false);
  /** The replay of what happened before has arrived. */
  replayed = $state(false);
  starting = $state(false);
  asked = $state<Asked>(null);
  error = $state.raw<ErrorReport | null>(null);
  /** Limits that were given since the run was opened. */
  #limits = $state.raw<GovernorConfig | null>(null);
  #stream: Stream | null = null;
  #generation = 0;

  status = $derived.by<RunStatus>(() => {
    if (this.starting) return "starting";
    if (this.id === null) return "none";
    const end = this.state.end;
    if (end?.kind === "failed") return "failed";
    if (end?.kind === "finished") return end.reason === "stopped" ? "stopped" : "finished";
    if (!this.replayed) return "starting";
    if (!this.following) return "interrupted";
    return this.state.phase === PAUSED ? "paused" : "running";
  });
  alive = $derived(this.status === "starting" || this.status === "running" || this.status === "paused");
  /** There is an adapter that can be used. */
  usable = $derived(this.state.checkpoint !== null || this.state.end?.kind === "finished");

  async start(config: RunConfig): Promise<boolean> {
    this.starting = true;
    this.error = null;
    try {
      const { run_id } = await platform.start(config);
      await this.open(run_id);
      return true;
    } catch (error) {
      this.error = toReport(error);
      return false;
    } finally {
      this.starting = false;
    }
  }

  /** Shows a run: replays its events and follows it while it lives. */
  async open(id: string): Promise<void> {
    const generation = ++this.#generation;
    await this.#stream?.close().catch(() => undefined);
    this.#stream = null;
    this.id = id;
    this.state = emptyRun();
    this.files = NO_FILES;
    this.#limits = null;
    this.error = null;
    this.asked = null;
    this.following = true;
    this.replayed = false;
    void this.#readFiles(id);
    try {
      this.#stream = await platform.watch(id, (message) => {
        if (generation !== this.#generation) return;
        if ("lines" in message) {
          const next = { ...this.state };
          apply(next, message.lines);
          this.state = next;
          this.replayed = true;
          this.#settle();
        } else {
          this.following = false;
          this.replayed = true;
          // Who was asked is gone.
          if (this.asked !== "resume") this.asked = null;
          if (message.ended.error !== null && this.state.end === null && this.state.runId === null)
            this.error = toReport(message.ended.error);
        }
      });
    } catch (error) {
      this.following = false;
      this.replayed = true;
      this.error = toReport(error);
    }
  }

  async ask(action: "pause" | "continue" | "stop"): Promise<void> {
    if (this.id === null) return;
    this.asked = action;
    try {
      await platform.control(this.id, action);
    } catch (error) {
      this.asked = null;
      this.error = toReport(error);
    }
  }

  /** When the open run rests or pauses by itself. */
  limits = $derived(this.#limits ?? this.files.limits);

  /** Gives the open run other limits, from now on. */
  async govern(change: (limits: GovernorConfig) => void): Promise<void> {
    const [id, before] = [this.id, this.#limits];
    if (id === null || this.limits === null) return;
    const limits = { ...this.limits };
    change(limits);
    // At once: another change may come before this one is answered.
    this.#limits = limits;
    try {
      await platform.govern(id, limits);
    } catch (error) {
      if (this.#limits === limits) this.#limits = before;
      this.error = toReport(error);
    }
  }

  /** The run rests or waits for a reason that a person may overrule; heat is none. */
  canOverrule = $derived(
    this.state.held?.code === "governor.quiet_hours" || this.state.held?.code === "governor.other_program",
  );

  /** Lets the run go on although its limits say otherwise, for the rest of the run. */
  async overrule(): Promise<void> {
    if (!this.canOverrule) return;
    const isQuiet = this.state.held?.code === "governor.quiet_hours";
    await this.govern((limits) => {
      if (isQuiet) limits.quiet_hours = null;
      else limits.yield_to_others = false;
    });
  }

  async resume(): Promise<void> {
    const { id } = this;
    if (id === null) return;
    this.asked = "resume";
    this.error = null;
    try {
      await platform.resume(id);
      await this.open(id);
    } catch (error) {
      this.asked = null;
      this.error = toReport(error);
    }
  }

  /** Back to a draft: nothing is open. A run that lives goes on. */
  async close(): Promise<void> {
    this.#generation++;
    await this.#stream?.close().catch(() => undefined);
    this.#stream = null;
    this.id = null;
    this.state = emptyRun();
    this.following = false;
    this.replayed = false;
    this.asked = null;
    this.error = null;
  }

  /** Forgets what was asked once the events say that it happened. */
  #settle(): void {
    const { phase, end } = this.state;
    if (this.asked === "pause" && (phase === PAUSED || end !== null)) this.asked = null;
    if (this.asked === "continue" && phase !== PAUSED) this.asked = null;
    if (this.asked === "stop" && end !== null) this.asked = null;
    if (this.asked === "resume") this.asked = null;
  }

  async #readFiles(id: string): Promise<void> {
    // The engine writes them before the first event; a run that was started this instant may need a moment.
    for (let attempt = 0; attempt < 20 && this.id === id; attempt++) {
      const files = await platform.runFiles(id).catch(() => null);
      if (files !== null && this.id === id) this.files = files;
      if (files?.config) return;
      await new Promise((resolve) => setTimeout(resolve, 500));
    }
  }
}

export const run = new RunStore();
