import { shortName } from "$lib/cards";
import { i18n } from "$lib/i18n/index.svelte";
import { card } from "$lib/stores/card.svelte";
import { data } from "$lib/stores/data.svelte";
import { exports } from "$lib/stores/exports.svelte";
import { model } from "$lib/stores/model.svelte";
import { plan } from "$lib/stores/plan.svelte";
import type { Step } from "$lib/stores/route.svelte";
import { run } from "$lib/stores/run.svelte";

export type Mark = "todo" | "done" | "note" | "stop" | "running";

export interface StepView {
  step: Step;
  mark: Mark;
  words: string;
}

/** Why there is no plan: model or data are not chosen, this computer cannot be looked at, or it is about to come. */
export function planMissing(): "chosen" | "computer" | "coming" {
  if (model.found === null || data.found === null) return "chosen";
  return card.here === null && card.error !== null ? "computer" : "coming";
}

/** How far the open run is, or how it ended. */
export function trainView(): [Mark, string] {
  const { m, f } = i18n;
  const w = m.step;
  const step = f.count(run.state.step);
  switch (run.status) {
    case "none":
      return ["todo", w.trainNone];
    case "starting":
      return ["running", w.trainStarting];
    case "running":
      return [run.state.trouble ? "note" : "running", w.trainStep(step, f.count(run.state.nSteps))];
    case "paused":
      return ["note", w.trainPaused(step)];
    case "finished":
      return ["done", w.trainDone(step, f.count(run.state.nSteps))];
    case "stopped":
      return ["note", w.trainStopped(step)];
    case "failed":
      return ["stop", w.trainFailed];
    case "interrupted":
      return ["note", w.trainInterrupted(step)];
  }
}

/** Mark and words of the six steps, from the stores. */
export function stepViews(): StepView[] {
  const { m, f } = i18n;
  const w = m.step;

  const cardView = (): [Mark, string] => {
    if (card.here === null) return card.error ? ["stop", w.stop] : ["todo", w.looking];
    const chosen = card.profiles.find((p) => p.id === card.chosen);
    if (chosen) return ["note", chosen.name];
    const found = card.here.train_on === "card" ? card.here.cards[0] : undefined;
    return ["done", found ? shortName(found.name) : w.cardNone(f.memory(card.here.memory_total_bytes))];
  };

  const modelView = (): [Mark, string] => {
    if (model.error) return ["stop", w.modelBad];
    if (model.loading) return ["running", model.name ?? w.looking];
    return model.found ? ["done", model.name ?? ""] : ["todo", w.modelNone];
  };

  const dataView = (): [Mark, string] => {
    if (data.error) return ["stop", w.dataBad];
    if (data.loading) return ["running", data.name ?? w.looking];
    if (data.found === null) return ["todo", data.name ?? w.dataNone];
    const left = new Set(data.found.problems.filter((p) => p.left_out).map((p) => p.row)).size;
    return left > 0
      ? ["note", w.dataProblems(f.count(left))]
      : ["done", w.dataExamples(f.count(data.found.dataset.n_examples))];
  };

  const planView = (): [Mark, string] => {
    // What a run holds is not free for another plan; its own is the one it was started by.
    if (run.alive && run.files.plan) return ["done", w.planFits(f.duration(run.files.plan.time.total_s))];
    if (plan.error) return ["stop", w.planBad];
    if (plan.plan === null)
      return { chosen: ["todo", w.planNeeds], computer: ["stop", w.planBad], coming: ["running", w.planComing] }[
        planMissing()
      ] as [Mark, string];
    if (!plan.plan.fits) return ["stop", w.planNot];
    if (!card.isHere) return ["note", w.planElsewhere];
    return ["done", w.planFits(f.duration(plan.plan.time.total_s))];
  };

  const useView = (): [Mark, string] => {
    if (run.id === null || !run.usable || run.alive) return ["todo", w.useNone];
    const known = [
      ...exports.done.map((d) => d.proof.verdict !== "not_proven"),
      ...(exports.done.length === 0 ? run.state.exported.map((e) => e.proven) : []),
    ];
    if (known.length === 0) return ["todo", w.useReady];
    return known.every(Boolean) ? ["done", w.useProven] : ["stop", w.useNotProven];
  };

  return (
    [
      ["card", cardView()],
      ["model", modelView()],
      ["data", dataView()],
      ["plan", planView()],
      ["train", trainView()],
      ["use", useView()],
    ] as const
  ).map(([step, [mark, words]]) => ({ step, mark, words }));
}
