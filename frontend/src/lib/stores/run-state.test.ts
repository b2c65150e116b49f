import { describe, expect, test } from "vitest";

import type { EventLine } from "$lib/bindings/EventLine";

import { apply, bestEvaluation, emptyRun, recentSpeed, type RunState } from "./run-state";

let clock = 0;
const at = (event: Record<string, unknown>, ms = 1000) =>
  ({ time_ms: (clock += ms), ...event }) as unknown as EventLine;
const started = (step: number, resumed: boolean) =>
  at({ type: "started", run_id: "r", pid: 1, step, n_steps: 10, resumed });
const step = (n: number, loss: number | null) =>
  at({
    type: "step",
    step: n,
    epoch: n / 5,
    loss,
    learning_rate: 1e-4,
    grad_norm: 1,
    n_tokens: 500,
    n_supervised_tokens: 100,
    step_ms: 1000,
    eta_s: n > 2 ? 10 - n : null,
    memory: { planned_bytes: 100, used_bytes: 90, peak_bytes: 95 },
  });
const evaluation = (n: number, loss: number) =>
  at({ type: "evaluation", step: n, loss, best: true, n_supervised_tokens: 9 });
const sample = (n: number, answer: string) =>
  at({ type: "sample", step: n, index: 0, prompt: "p", answer, wanted: "w" });
const finished = (reason: string, n: number) => at({ type: "finished", reason, step: n, best_step: 5 });

function folded(lines: EventLine[]): RunState {
  const state = emptyRun();
  apply(state, lines);
  return state;
}

describe("replaying a run", () => {
  const whole = [
    started(0, false),
    ...[1, 2, 3, 4, 5].map((n) => step(n, 3 - n / 10)),
    evaluation(5, 2.4),
    finished("completed", 5),
  ];

  test("gives the same state in one piece and line by line", () => {
    const once = folded(whole);
    const bit = emptyRun();
    for (const line of whole) apply(bit, [line]);
    expect(bit).toEqual(once);
    expect(once.step).toBe(5);
    expect(once.steps.loss).toEqual([2.9, 2.8, 2.7, 2.6, 2.5]);
    expect(once.end).toEqual({ kind: "finished", reason: "completed", bestStep: 5 });
    expect(recentSpeed(once)).toBe(500);
  });

  test("a resumed run shows each step once, as it was trained last", () => {
    const state = folded([
      started(0, false),
      ...[1, 2, 3, 4].map((n) => step(n, n)),
      evaluation(4, 9),
      sample(4, "old"),
      started(2, true),
      step(3, 30),
      step(4, 40),
      evaluation(4, 1),
      sample(4, "new"),
    ]);
    expect(state.steps.step).toEqual([1, 2, 3, 4]);
    expect(state.steps.loss).toEqual([1, 2, 30, 40]);
    expect(state.evaluations).toEqual([{ step: 4, loss: 1, best: true }]);
    expect(state.samples.map((s) => s.answer)).toEqual(["new"]);
    expect(state.resumedAt).toEqual([2]);
  });

  test("all columns stay equally long after a rewind", () => {
    const state = folded([started(0, false), step(1, 1), step(2, 2), started(1, true), step(2, 3)]);
    const lengths = Object.values(state.steps).map((column) => column.length);
    expect(new Set(lengths)).toEqual(new Set([2]));
  });

  test("a stopped run that goes on has no end any more", () => {
    const state = folded([started(0, false), step(1, 1), finished("stopped", 1), started(1, true)]);
    expect(state.end).toBeNull();
    expect(state.step).toBe(1);
  });

  test("the time between two processes is not time of the run", () => {
    clock = 0;
    const state = folded([
      started(0, false),
      step(1, 1),
      { ...started(1, true), time_ms: 9_000_000 },
      { ...step(2, 1), time_ms: 9_002_000 },
    ]);
    expect(state.activeMs).toBe(1000 + 2000);
  });
});

describe("values", () => {
  test("NaN, which JSON cannot say, stays NaN and is not zero", () => {
    const state = folded([started(0, false), step(1, null)]);
    expect(state.steps.loss[0]).toBeNaN();
  });
  test("the best evaluation is the lowest that is a number", () => {
    const state = folded([
      started(0, false),
      evaluation(1, 3),
      evaluation(2, 1),
      at({ type: "evaluation", step: 3, loss: null, best: false }),
    ]);
    expect(bestEvaluation(state)).toMatchObject({ step: 2, loss: 1 });
    expect(bestEvaluation(emptyRun())).toBeNull();
  });
  test("a line that is no event changes nothing", () => {
    const state = folded([started(0, false)]);
    const before = structuredClone(state);
    apply(state, [{ error: { code: "x", message: "m", next_step: "" } } as unknown as EventLine]);
    expect(state).toEqual(before);
  });
  test("a fault ends the run and keeps its words", () => {
    const error = { code: "run.disk_full", message: "m", next_step: "n" };
    expect(folded([started(0, false), at({ type: "failed", error })]).end).toEqual({ kind: "failed", error });
  });
});

describe("what is not as planned", () => {
  const rung = () => at({ type: "rung", step: 1, reason: "r", words: "w", from: {}, to: {} });
  const warning = (code: string) => at({ type: "warning", code, message: "m" });

  test("is the newest ladder step or word of the card's memory, and no other warning", () => {
    expect(folded([started(0, false), step(1, 2), warning("run.no_evaluation")]).trouble).toBeNull();
    expect(folded([started(0, false), step(1, 2), rung()]).trouble).toMatchObject({ kind: "rung", step: 1 });
    const both = folded([started(0, false), rung(), step(1, 2), warning("run.card_spilled"), warning("rehearsal.slower")]);
    expect(both.trouble).toMatchObject({ code: "run.card_spilled", step: 1 });
  });

  test("stays a smaller step when the run is taken up again, not what was said of the card", () => {
    expect(folded([started(0, false), rung(), started(0, true)]).trouble).toMatchObject({ kind: "rung" });
    expect(folded([started(0, false), warning("run.card_filling"), started(0, true)]).trouble).toBeNull();
  });
});
