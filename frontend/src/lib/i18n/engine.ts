/**
 * The engine speaks English. Where the window knows a code or a name it says it in the window's language; what carries
 * values it does not know stays in the engine's own sentence.
 */

import type { Advice } from "$lib/bindings/Advice";
import type { CardReport } from "$lib/bindings/CardReport";
import type { ErrorReport } from "$lib/bindings/ErrorReport";
import type { GpuSetup } from "$lib/bindings/GpuSetup";
import type { Plan } from "$lib/bindings/Plan";
import type { PlanWarning } from "$lib/bindings/PlanWarning";
import type { Reason } from "$lib/bindings/Reason";
import type { Remedy } from "$lib/bindings/Remedy";
import type { Formatter, Lang } from "$lib/format";
import type { Note, PaceNote } from "$lib/stores/run-state";

import { en } from "./en";
import {
  zhCardOutcomes,
  zhChanges,
  zhChecks,
  zhGpuReasons,
  zhItems,
  zhPaces,
  zhPhrases,
  zhProblems,
  zhReasons,
  zhRemedies,
  zhRunWarnings,
  zhSettings,
  zhWarnings,
} from "./engine-zh";
import { zhErrors } from "./errors-zh";
import { byRule } from "./sentences-zh";

export interface Explained {
  message: string;
  next_step: string;
  /** The engine's sentence with the values, where `message` is ours. */
  original: string | null;
}

export function explain(error: ErrorReport, lang: Lang): Explained {
  const known = lang === "zh" ? zhErrors[error.code] : undefined;
  if (known === undefined) return { message: error.message, next_step: error.next_step, original: null };
  return { message: known[0], next_step: known[1] || error.next_step, original: error.message };
}

/** Label of a memory item. */
export function itemLabel(name: string, label: string, lang: Lang): string {
  return lang === "zh" ? (zhItems[label] ?? zhItems[name] ?? label) : label;
}

/** A phrase of the engine that has no values in it, such as the name of a format. */
export function phrase(text: string, lang: Lang): string {
  return (lang === "zh" ? zhPhrases[text] : enPhrases[text]) ?? text;
}

/** A sentence that has no code, as far as its form is known. */
export function remark(text: string, lang: Lang): string {
  return lang === "zh" ? byRule(text) : text;
}

const enPhrases: Record<string, string> = {
  messages: "chat messages",
  sharegpt: "ShareGPT conversations",
  alpaca: "Alpaca instructions",
  prompt_completion: "prompt and completion",
  text: "plain text",
  columns: "own columns",
};

/** Name of a kind of problem with a row; null where only the engine has words for it. */
export function problemTitle(code: string, lang: Lang): string | null {
  return (lang === "zh" ? zhProblems[code] : enProblems[code]) ?? null;
}

const enProblems: Record<string, string> = {
  json_incomplete: "Row ends too early",
  json_invalid: "Row is not JSON",
  not_an_object: "Row is not an object",
  wrong_type: "Field of the wrong type",
  field_count: "Wrong number of columns",
  unclosed_quote: "Quote is not closed",
  text_after_quote: "Text after a closing quote",
  lone_surrogate: "Broken character",
  not_utf8: "Not UTF-8 text",
  no_conversation: "No conversation in the row",
  empty_conversation: "Conversation is empty",
  no_assistant_turn: "No answer to learn",
  empty_prompt: "Question is empty",
  empty_answer: "Answer is empty",
  empty_text: "Text is empty",
  turn: "Turn cannot be read",
  tools: "Tool description cannot be read",
  tool_arguments: "Tool call cannot be read",
  template_refused: "Chat template refuses the row",
  template_failed: "Chat template fails on the row",
  unwritten_turn: "Chat template leaves out a turn",
  tokenizer: "Cannot be turned into tokens",
  mask: "Learned part cannot be found",
  nothing_learned: "Nothing would be learned",
  too_long: "Longer than the limit",
  cut: "Cut to the limit",
};

/** Why a setting is what it is. */
export function reasonWords(reason: Reason, plan: Plan, lang: Lang, f: Formatter): string {
  return (lang === "zh" ? zhReasons[reason.code]?.(plan, f, reason.why) : null) ?? reason.why;
}

/** The engine says nothing of a difference in memory that is smaller. */
const LEAST_DIFFERENCE = 2 ** 19;

/** What another value would do: said from its numbers, where there are numbers. */
export function changeWords(reason: Reason, lang: Lang, f: Formatter): string {
  const { change } = reason;
  if (lang !== "zh") return reason.if_changed;
  if (change === null) {
    const known = zhChanges[reason.setting];
    return known ? byRule(reason.if_changed, [known]) : reason.if_changed;
  }
  const signed = (n: number, words: string) => `${n < 0 ? "−" : "+"}${words}`;
  const parts: string[] = [];
  if (change.n_over_length !== 0)
    parts.push(`超长样本 ${signed(change.n_over_length, f.count(Math.abs(change.n_over_length)))} 条`);
  if (Math.abs(change.bytes) >= LEAST_DIFFERENCE) parts.push(signed(change.bytes, f.file(Math.abs(change.bytes))));
  if (Math.abs(change.time_s) >= 1) parts.push(signed(change.time_s, f.duration(Math.abs(change.time_s))));
  if (parts.length === 0) parts.push("没有额外开销");
  if (!change.fits) parts.push("放不下");
  return `${zhValue(change.value)}：${parts.join("，")}`;
}

/** The value of a setting as the engine writes it: "Most (C0); part (c1) in 9 of 32 layers". */
export function valueWords(value: string, lang: Lang): string {
  return lang === "zh" ? zhValue(value) : value;
}

/** "Rank 32" → "秩 32": values, as far as they are known. */
function zhValue(value: string): string {
  for (const [pattern, words] of zhSettings) {
    const match = pattern.exec(value);
    if (match) return words(match);
  }
  return value;
}

export function remedyWords(remedy: Remedy, lang: Lang): string {
  return lang === "zh" ? byRule(remedy.words, zhRemedies[remedy.setting] ?? []) : remedy.words;
}

/** How the search for cards ended: what was found, and what can be done. */
export function cardReport(report: CardReport, lang: Lang): [string, string] {
  const known = lang === "zh" ? zhCardOutcomes[report.outcome] : undefined;
  return known === undefined ? [report.message, report.next_step] : [known[0], known[1]];
}

/** Something worth knowing about the computer: what is so, and what can be done. */
export function adviceWords(advice: Advice, lang: Lang): [string, string] {
  const known = lang === "zh" ? zhErrors[advice.code] : undefined;
  if (known === undefined) return [advice.message, advice.next_step];
  const said = byRule(advice.message);
  return [said === advice.message ? known[0] : said, known[1]];
}

/** Why runs train on the processor though there is a card, and what can be done. */
export function gpuWords(setup: GpuSetup, lang: Lang): [string, string] {
  const known = lang === "zh" ? zhGpuReasons[setup.reason] : undefined;
  return known === undefined ? [setup.message, setup.next_step] : [known[0], known[1]];
}

/** Name of a check of a proof. */
export function checkName(code: string, name: string, lang: Lang): string {
  return lang === "zh" ? (zhChecks[code] ?? name) : name;
}

export function warningWords(warning: PlanWarning, plan: Plan, lang: Lang, f: Formatter): string {
  return (lang === "zh" ? zhWarnings[warning.code]?.(plan, f, warning.message) : null) ?? warning.message;
}

/** Why a run is slower than it could be, or waits. */
export function paceWords(note: PaceNote, lang: Lang, f: Formatter): string {
  const known = lang === "zh" ? zhPaces[`${note.pace} ${note.code}`.trim()] : undefined;
  if (known === undefined) return note.message;
  return note.untilMs === null ? known : `${known}${f.clock(note.untilMs)} 继续。`;
}

/** What a run said on its way, and what follows from it. */
export function noteWords(note: Note, lang: Lang, f: Formatter): [string, string] {
  switch (note.kind) {
    case "warning":
      return [runWarningWords(note.code, note.message, lang), ""];
    case "rung":
      return lang === "zh" ? zhRung(note) : [note.reason, note.words];
    case "scale":
      return scaleWords(note, lang, f);
    case "pace":
      return [paceWords(note, lang, f), ""];
  }
}

/** What became of the scale of an f16 run's loss. */
function scaleWords(note: Extract<Note, { kind: "scale" }>, lang: Lang, f: Formatter): [string, string] {
  const [from, to, times] = [f.count(note.from), f.count(note.to), f.count(note.nHalved)];
  if (lang === "en") return [note.reason, `It is ${to} from here on; halved ${times} times so far.`];
  const why =
    note.to < note.from
      ? `损失缩放为 ${from} 时有梯度超出了 f16 的范围：用同样的样本重做这一步。`
      : `损失缩放为 ${from} 时一直没有超出范围。`;
  return [why, `此后为 ${to}；到目前为止减半了 ${times} 次。`];
}

function runWarningWords(code: string, message: string, lang: Lang): string {
  const known = lang === "zh" ? zhRunWarnings[code] : undefined;
  const match = known?.[0].exec(message);
  return known && match ? known[1](match) : message;
}

function zhRung({ from, to, reason }: Extract<Note, { kind: "rung" }>): [string, string] {
  const changes: string[] = [];
  if (from.n_layers_cached !== to.n_layers_cached) changes.push("不再保留反量化的权重");
  if (from.head_rows !== to.head_rows) changes.push(`输出层一次 ${to.head_rows} 行（原为 ${from.head_rows} 行）`);
  if (from.micro_batch !== to.micro_batch)
    changes.push(`一次 ${to.micro_batch} 条序列、每步 ${to.accumulation} 次（原为 ${from.micro_batch} × ${from.accumulation}）`);
  if (from.recompute !== to.recompute)
    changes.push(`重算方式 ${to.recompute.toUpperCase()}（原为 ${from.recompute.toUpperCase()}）`);
  else if (from.n_layers_eased !== to.n_layers_eased)
    changes.push(`比 ${to.recompute.toUpperCase()} 少重算的层为 ${to.n_layers_eased} 层（原为 ${from.n_layers_eased} 层）`);
  if (from.mlp_rows !== to.mlp_rows && to.mlp_rows !== null) changes.push(`MLP 一次 ${to.mlp_rows} 个词元`);
  if (from.offload_inputs !== to.offload_inputs) changes.push("各层的输入放在系统内存中等待");
  const rehearsed = /^The rehearsal took (.+), (.+) more than planned, and (.+) are free for it\.$/.exec(reason);
  const short = rehearsed
    ? `预演用了 ${rehearsed[1]}，比方案多 ${rehearsed[2]}，而可用的是 ${rehearsed[3]}。此后：`
    : "内存不足，此后：";
  return [`${short}${changes.join("；")}。`, "每一步的序列、顺序和所学内容都不变，只影响用时。"];
}

/** Name of what the engine is doing. */
export function phaseWords(name: string | null, phases: Record<string, string>): string {
  if (name === null) return "";
  return phases[name] ?? en.train.phase[name] ?? name.replace(/_/g, " ");
}
