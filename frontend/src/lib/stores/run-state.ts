/** Events of a run, folded into what the screens show. Pure: replaying the same events gives the same state. */

import type { CardReading } from "$lib/bindings/CardReading";
import type { ErrorReport } from "$lib/bindings/ErrorReport";
import type { EventLine } from "$lib/bindings/EventLine";
import type { FinishReason } from "$lib/bindings/FinishReason";
import type { Pace } from "$lib/bindings/Pace";
import type { Rehearsal } from "$lib/bindings/Rehearsal";
import type { Rung } from "$lib/bindings/Rung";

/** One number per step, in columns, because charts want columns. JSON has no NaN: the engine's NaN arrives as null. */
export interface StepColumns {
  step: number[];
  loss: number[];
  learningRate: number[];
  gradNorm: number[];
  tokensPerS: number[];
  epoch: number[];
  usedBytes: number[];
  peakBytes: number[];
  plannedBytes: number[];
  timeMs: number[];
  nTokens: number[];
  /** Of the pool that tensors on a card are from: in tensors, and taken of the card. */
  poolUsedBytes: number[];
  poolReservedBytes: number[];
  /** Of the card at the end of the step; NaN where its driver does not say it, or there is no card. */
  cardUsedBytes: number[];
  utilisation: number[];
  temperatureC: number[];
  powerW: number[];
}

export interface Evaluation {
  step: number;
  loss: number;
  best: boolean;
}

export interface Sample {
  step: number;
  index: number;
  prompt: string;
  answer: string;
  wanted: string;
}

/** What a run said besides its steps, in its order. */
export type Note = { step: number; timeMs: number } & (
  | { kind: "warning"; code: string; message: string }
  | { kind: "rung"; reason: string; words: string; from: Rung; to: Rung }
  | { kind: "scale"; reason: string; from: number; to: number; nHalved: number }
  | { kind: "pace"; pace: Pace; code: string; message: string; untilMs: number | null }
);
export type PaceNote = Extract<Note, { kind: "pace" }>;

export interface RunState {
  runId: string | null;
  pid: number | null;
  nSteps: number;
  /** Steps done. */
  step: number;
  /** When the first process took the run up, and when the newest event was written. */
  startedMs: number | null;
  lastMs: number | null;
  /** Time spent by all processes, without the gaps between them. */
  activeMs: number;
  phase: string | null;
  etaS: number | null;
  steps: StepColumns;
  evaluations: Evaluation[];
  samples: Sample[];
  checkpoint: { step: number; timeMs: number; bytes: number } | null;
  notes: Note[];
  /** What was measured before the first step. */
  rehearsal: Rehearsal | null;
  /** Why the run is slower than it could be, or waits; null at full speed. */
  held: PaceNote | null;
  /** Why the run is not as it was planned, the newest: memory ran out, or its card is short of it; null where it is. */
  trouble: Note | null;
  /** The newest reading of the card. */
  reading: CardReading | null;
  exported: { kind: string; path: string; proven: boolean }[];
  /** Steps at which another process took over. */
  resumedAt: number[];
  end:
    | { kind: "finished"; reason: FinishReason; bestStep: number | null }
    | { kind: "failed"; error: ErrorReport }
    | null;
}

export function emptyRun(): RunState {
  return {
    runId: null,
    pid: null,
    nSteps: 0,
    step: 0,
    startedMs: null,
    lastMs: null,
    activeMs: 0,
    phase: null,
    etaS: null,
    steps: {
      step: [],
      loss: [],
      learningRate: [],
      gradNorm: [],
      tokensPerS: [],
      epoch: [],
      usedBytes: [],
      peakBytes: [],
      plannedBytes: [],
      timeMs: [],
      nTokens: [],
      poolUsedBytes: [],
      poolReservedBytes: [],
      cardUsedBytes: [],
      utilisation: [],
      temperatureC: [],
      powerW: [],
    },
    evaluations: [],
    samples: [],
    checkpoint: null,
    notes: [],
    rehearsal: null,
    held: null,
    trouble: null,
    reading: null,
    exported: [],
    resumedAt: [],
    end: null,
  };
}

/** JSON cannot say NaN; a float that is missing where one must be is one. */
const float = (value: number | null | undefined): number => (value === null || value === undefined ? NaN : value);

/** Folds events into `state` in place. */
export function apply(state: RunState, lines: readonly EventLine[]): void {
  // A line that is no event, such as an error of who reads them, is not the run's.
  for (const line of lines) if (typeof line.type === "string") applyOne(state, line);
}

function applyOne(state: RunState, line: EventLine): void {
  const started = line.type === "started";
  if (state.lastMs !== null && !started) state.activeMs += Math.max(0, line.time_ms - state.lastMs);
  state.lastMs = line.time_ms;
  const at = { step: state.step, timeMs: line.time_ms };
  switch (line.type) {
    case "started": {
      state.runId = line.run_id;
      state.pid = line.pid;
      state.nSteps = line.n_steps;
      state.startedMs ??= line.time_ms;
      state.end = null;
      state.phase = null;
      state.etaS = null;
      state.held = null;
      // What was said of the card was so for the process before; less memory is taken until the end.
      if (state.trouble?.kind === "warning") state.trouble = null;
      if (line.resumed) {
        state.resumedAt.push(line.step);
        rewind(state, line.step);
      }
      state.step = line.step;
      break;
    }
    case "phase":
      state.phase = line.name;
      break;
    case "step": {
      // A step written twice (its process died before the checkpoint) is shown once, as it was trained last.
      if (line.step <= state.step) rewind(state, line.step - 1);
      const columns = state.steps;
      columns.step.push(line.step);
      columns.loss.push(float(line.loss));
      columns.learningRate.push(float(line.learning_rate));
      columns.gradNorm.push(float(line.grad_norm));
      columns.tokensPerS.push(line.step_ms > 0 ? line.n_tokens / (line.step_ms / 1000) : NaN);
      columns.epoch.push(float(line.epoch));
      columns.usedBytes.push(line.memory.used_bytes);
      columns.peakBytes.push(line.memory.peak_bytes);
      columns.plannedBytes.push(line.memory.planned_bytes);
      columns.timeMs.push(line.time_ms);
      columns.nTokens.push(line.n_tokens);
      columns.poolUsedBytes.push(float(line.memory.pool?.used_bytes));
      columns.poolReservedBytes.push(float(line.memory.pool?.reserved_bytes));
      const reading = line.card ?? null;
      columns.cardUsedBytes.push(float(reading?.used_bytes));
      columns.utilisation.push(float(reading?.utilisation));
      columns.temperatureC.push(float(reading?.temperature_c));
      columns.powerW.push(float(reading?.power_w));
      state.reading = reading;
      state.step = line.step;
      state.etaS = line.eta_s ?? null;
      state.phase = "train";
      break;
    }
    case "evaluation":
      state.evaluations = state.evaluations.filter((e) => e.step !== line.step);
      state.evaluations.push({ step: line.step, loss: float(line.loss), best: line.best });
      break;
    case "sample":
      state.samples = state.samples.filter((s) => s.step !== line.step || s.index !== line.index);
      state.samples.push({
        step: line.step,
        index: line.index,
        prompt: line.prompt,
        answer: line.answer,
        wanted: line.wanted,
      });
      break;
    case "checkpoint":
      state.checkpoint = { step: line.step, timeMs: line.time_ms, bytes: line.bytes };
      break;
    case "warning": {
      const said: Note = { ...at, kind: "warning", code: line.code, message: line.message };
      state.notes.push(said);
      if (line.code === "run.card_filling" || line.code === "run.card_spilled") state.trouble = said;
      break;
    }
    case "rung": {
      const { reason, words, from, to } = line;
      const said: Note = { ...at, kind: "rung", reason, words, from, to };
      state.notes.push(said);
      state.trouble = said;
      break;
    }
    case "loss_scale": {
      const { reason, from, to, n_halved: nHalved } = line;
      state.notes.push({ ...at, kind: "scale", reason, from, to, nHalved });
      break;
    }
    case "governor": {
      const { pace, code, message } = line;
      const said: PaceNote = { ...at, kind: "pace", pace, code, message, untilMs: line.until_ms ?? null };
      state.notes.push(said);
      state.held = pace === "full" ? null : said;
      break;
    }
    case "rehearsal":
      state.rehearsal = line.rehearsal;
      break;
    case "exported":
      state.exported.push({ kind: line.kind, path: line.path, proven: line.proven });
      break;
    case "finished":
      state.end = { kind: "finished", reason: line.reason, bestStep: line.best_step ?? null };
      state.step = line.step;
      state.etaS = null;
      break;
    case "failed":
      state.end = { kind: "failed", error: line.error };
      state.etaS = null;
      break;
  }
}

/** Forgets what came after `step`: the next process trains those steps again. */
function rewind(state: RunState, step: number): void {
  const columns = state.steps;
  let keep = columns.step.length;
  while (keep > 0 && (columns.step[keep - 1] as number) > step) keep--;
  for (const column of Object.values(columns) as number[][]) column.length = keep;
  state.evaluations = state.evaluations.filter((e) => e.step <= step);
  state.samples = state.samples.filter((s) => s.step <= step);
  state.step = step;
}

/** The evaluation with the lowest loss. */
export function bestEvaluation(state: RunState): Evaluation | null {
  let best: Evaluation | null = null;
  for (const e of state.evaluations) if (!Number.isNaN(e.loss) && (best === null || e.loss < best.loss)) best = e;
  return best;
}

/** Mean tokens per second of the last `n` steps. */
export function recentSpeed(state: RunState, n = 10): number | null {
  const speeds = state.steps.tokensPerS.slice(-n).filter((v) => Number.isFinite(v));
  return speeds.length === 0 ? null : speeds.reduce((a, b) => a + b, 0) / speeds.length;
}
