import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

import { expect, test } from "vitest";

import type { Change } from "$lib/bindings/Change";
import type { Plan } from "$lib/bindings/Plan";
import type { Reason } from "$lib/bindings/Reason";
import { openConfig } from "$lib/draft";
import { formatter } from "$lib/format";

import { adviceWords, changeWords, reasonWords, remedyWords, warningWords } from "./engine";
import {
  zhChanges,
  zhProblems,
  zhReasons,
  zhRemedies,
  zhRunWarnings,
  zhWarnings,
} from "./engine-zh";
import { zhErrors } from "./errors-zh";
import { zhRemarks, type Rule } from "./sentences-zh";

const zh = formatter("zh");

/** Rust files of a folder as one text, without their tests. */
function rust(...folders: string[]): string {
  return folders
    .flatMap((folder) =>
      readdirSync(join(process.cwd(), "..", folder), { recursive: true, encoding: "utf8" })
        .filter((path) => path.endsWith(".rs") && !/(^|[\\/])tests([\\/]|\.rs$)/.test(path))
        .map((path) => readFileSync(join(process.cwd(), "..", folder, path), "utf8")),
    )
    .map((text) => text.split("#[cfg(test)]\nmod tests")[0])
    .join("\n");
}
const engine = rust("engine/src", "src-tauri/src");
const among = (text: string, pattern: RegExp) => new Set([...text.matchAll(pattern)].map((found) => found[1] as string));

test("every code of an error, of advice and of a run's warning has Chinese words, and no other", () => {
  const families = "chat|config|data|export|generate|gpu|governor|hardware|model|plan|rehearsal|report|run|step|window";
  const codes = among(engine, new RegExp(`"((?:${families})\\.[a-z0-9_]+)"`, "g"));
  for (const code of among(engine, /\bsay\(\s*"([a-z_]+)"/g)) codes.add(`hardware.${code}`);
  const said = new Set([...Object.keys(zhErrors), ...Object.keys(zhRunWarnings)]);
  const known = (code: string) =>
    said.has(code) ||
    // Names of files and of settings.
    /\.(json|jsonl|toml|csv|html|safetensors)$/.test(code) ||
    ["data.length", "data.path", "governor.power_limit_w", "governor.temperature_limit_c"].includes(code) ||
    // Reasons of the governor's pace.
    ["governor.heat", "governor.other_program", "governor.power", "governor.quiet_hours"].includes(code) ||
    // Only for who speaks to the engine by hand.
    ["chat.question", "hardware.file_exists"].includes(code);
  expect([...codes].filter((code) => !known(code))).toEqual([]);
  expect([...said].filter((code) => !codes.has(code))).toEqual([]);
});

test("every reason, warning, remedy and kind of problem has Chinese words", () => {
  const reasons = readFileSync(join(process.cwd(), "../engine/src/plan/reasons.rs"), "utf8");
  const warnings = among(reasons, /\bwarn\(\s*"([a-z_]+)"/g);
  expect([...warnings].sort()).toEqual(Object.keys(zhWarnings).sort());

  const written: string[] = [];
  for (const [, setting, body] of reasons.matchAll(/\n {4}fn (\w+)\(&self\) -> [^\n]*Reason[^\n]*\{\n(.*?)\n {4}\}\n/gs))
    for (const code of among(body as string, /[({]\s*"([a-z][a-z0-9_]+)"(?:,| \})/g))
      // The setting's own name, and words of sentences.
      if (![setting, "cut", "is", "are", "packed"].includes(code)) written.push(`${setting}.${code}`);
  expect(written.sort()).toEqual(Object.keys(zhReasons).sort());

  const remedies = readFileSync(join(process.cwd(), "../engine/src/plan/remedy.rs"), "utf8");
  const settings = new Set([
    ...among(remedies, /setting: "([a-z_.]+)"\.into\(\)/g),
    ...among(remedies, /search\.change\(\s*"([a-z_.]+)"/g),
  ]);
  expect([...settings].sort()).toEqual(Object.keys(zhRemedies).sort());

  const data = rust("engine/src/data");
  const problems = new Set([
    ...among(data, /problem\(\s*(?:table, \w+, )?"([a-z0-9_]+)"/g),
    ...among(data, /(?:\(|line,)\s*"([a-z0-9_]+)",\s*(?:reason\)|format!)/g),
  ]);
  expect([...problems].sort()).toEqual(Object.keys(zhProblems).sort());
});

test("every sentence that is known by its form is still written in that form", () => {
  // What the engine writes, with a figure or a name in place of each value.
  const literals = [...engine.replace(/'\\?"'/g, "' '").matchAll(/"((?:[^"\\]|\\.)*)"/gs)].map((found) =>
    (found[1] as string)
      .replace(/\\\r?\n\s*/g, "")
      .replace(/\\"/g, '"')
      .replace(/\\\\/g, "\\"),
  );
  const written = ["7", '"7"', "a number", "example", "7 examples", "7 tensors", "7 GiB"].flatMap((value) =>
    literals.map((text) => text.replace(/\{[^{}]*\}/g, value)),
  );
  // Sentences that are made of pieces.
  const pieces = [
    "The weights are quantised (Q4_1): they are",
    "7 sequences at once instead of 8, and 4 times a step",
    "7 layers recomputing less than C1 instead of 3",
    "Other programs hold 2.5 GiB of the card's 12 GiB: Game.exe 1.5 GiB, chrome 600 MiB.",
    "NVIDIA H100 is divided into 2 parts (MIG): a run has the part 1g.12gb with 11 GiB of 80 GiB.",
    "Choose a smaller model: the least this one needs is 7 GiB.",
    "Choose a smaller model: the least this one needs is 7 GiB; Llama fits as you asked.",
    "90 % of the 320 W of the board, and 75 W assumed for the rest of the computer",
    "90 % of the 120 W that its driver allows, and 75 W assumed for the rest of the computer",
    "calculated from 6 cores at 7 GFLOP/s in all",
    "invalid JSON at column 58: expected value",
    "incomplete JSON, it ends early at column 58 (EOF)",
    "lone surrogate at column 58: half",
    "turn 2 holds a list where text is expected",
    "turn 2 holds a part of type image; only text can be learned",
    "7 of 7 layers differ, most layer 3 q_proj by 0.81, 4.2 % of its weight",
    "7 of 7 layers differ, most layer 3 q_proj by 0.81",
    "layer 3 q_proj was not trained",
    "equal at 40 of 41 positions (97.6 %)",
    "not a number nats",
    "Rounding to bf16 keeps 45 % of what training changed; the rest",
    "the answer is empty (7 is missing)",
    "the answer is empty (7 holds no text)",
    "Shorten the length to 7 tokens: 7 examples would be left out.",
    "Shorten the length to 7 tokens: 7 examples would be cut.",
    "Shorten the length to 7 tokens: no example is longer.",
    "nothing after this row could be read",
  ];
  const rules: Rule[] = [...zhRemarks, ...Object.values(zhRemedies).flat(), ...Object.values(zhChanges)];
  const lost = rules.filter(([pattern]) => ![...written, ...pieces].some((text) => pattern.test(text)));
  expect(lost.map(([pattern]) => pattern.source)).toEqual([]);
});

const plan = {
  settings: {
    lora: { ...openConfig().lora, rank: 512 },
    over_length: "truncate",
    packing: true,
    micro_batch: 2,
    accumulation: 8,
    length: 2048,
    n_steps: 212,
    learning_rate: 2e-4,
    checkpoints: { every_seconds: 300 },
  },
  data: { n_train: 4573, n_held_out: 95, n_over_length: 38, max_tokens: 4812, n_sequences: 1130 },
  time: { n_steps: 212, epochs: 3, total_s: 700_000 },
  host: { bytes: 3 * 2 ** 30, free_bytes: 5 * 2 ** 30 },
} as unknown as Plan;

/** The engine's sentences, as it writes them of this plan. */
const SAID: readonly (readonly [string, string])[] = [
  ["rank.very_large", "Seldom better than rank 64, and slower. All seven linear layers learn."],
  ["length.covers_all", "The longest example has 4,812 tokens: all fit whole."],
  ["length.covers_share", "About 99.1 % fit whole; 38 examples of up to 4,812 tokens are cut."],
  ["packing.short_examples", "Examples have 310 tokens on average: 4,573 fill 1,130 sequences. They never see each other."],
  ["batch.at_once", "All 16 fit at once."],
  ["batch.accumulated", "8 micro-batches of 2 train exactly like one batch of 16."],
  ["batch.fixed", "As you chose: 16 at once."],
  ["host_memory.parts", "In one piece it does not fit. The result is the same."],
  ["optimizer.large_state", "32-bit state takes 2.6 % of the card; 8-bit state 0.7 %."],
  ["optimizer.tight", "32-bit state takes 1.9 % of system memory, for which there is no room; 8-bit state 0.5 %."],
  ["base.layers", "Only an NF4 base has layers that are streamed or kept dequantised, as you chose."],
  ["learning_rate.usual", "Usual for LoRA, at batch 16 too."],
  ["learning_rate.fixed", "As you chose; usual for LoRA is 2e-4."],
  ["warmup.share", "3 % of 212 steps."],
  ["epochs.usual", "3 passes over 4,573 examples, 212 steps; the best evaluation is kept."],
  ["epochs.usual_unevaluated", "3 passes over 4,573 examples, 212 steps."],
  ["epochs.fixed", "As you chose: 212 steps."],
  ["evaluation.held_out", "95 examples held out. Also saves every 5 min 00 s."],
];
/** Figures of a sentence; what a width in bits or a time's seconds add is no value. */
const figures = (text: string) =>
  (text.replace(/\d+[- ]bit|\d+ 位|00 s/g, "").match(/\d[\d,.]*(?:e-\d)?/g) ?? []).map((n) => n.replace(/[.,]$/, "")).sort();

test("a reason in Chinese has every figure of the English one, and no other", () => {
  for (const [code, why] of SAID) {
    const words = reasonWords({ code, why } as Reason, plan, "zh", zh);
    expect(words, code).not.toMatch(/[A-Za-z]{6}/);
    expect(figures(words), `${code}: ${words}`).toEqual(figures(why));
    expect(reasonWords({ code, why } as Reason, plan, "en", formatter("en"))).toBe(why);
  }
  const odd = { code: "length.covers_share", why: "Brand new." } as Reason;
  expect(reasonWords(odd, plan, "zh", zh), "a figure that cannot be read is not made up").toBe("Brand new.");
});

test("a warning in Chinese has every figure of the English one", () => {
  const said: [string, string][] = [
    ["many_too_long", "38 of 4,706 examples are longer than 2,048 tokens and are cut."],
    ["few_examples", "12 examples may be learned by heart rather than understood."],
    ["rank_over_width", "Rank 512 is more than the 256 that the narrowest adapted layer can use."],
    ["card_not_used", "RTX 3060 is there; this engine trains on the processor."],
  ];
  for (const [code, message] of said)
    expect(figures(warningWords({ code, message }, plan, "zh", zh)), code).toEqual(figures(message));
  const host = { code: "much_host_memory", message: "3 GiB of system memory are pinned" };
  expect(warningWords(host, plan, "zh", zh)).toMatch(/3\.00 GiB.*5\.00 GiB/);
  expect(warningWords({ code: "very_long", message: "m" }, plan, "zh", zh)).toContain("8 天");
});

test("a remedy in Chinese names the card and the model as the English one does, with every figure", () => {
  const said: [string, string][] = [
    ["n_layers_cached", "Keep no weights dequantised: the same result, a little slower."],
    ["recompute", "Recompute more (C0 in all layers): the same result, slower."],
    ["host_memory", "Let what can wait in system memory: the same result."],
    ["host_memory", "Let the plan divide the MLP: the same result."],
    ["compute", "Compute in bf16: a little less exact; sums, norms and the loss stay in 32 bit."],
    ["micro_batch", "Take 1 sequence at a time, 16 to a step: the same training."],
    ["data.length", "Shorten the length to 1,024 tokens: 38 examples would be left out."],
    ["lora.rank", "Lower the rank to 8: the adapter can learn less."],
    ["memory_limit_bytes", "Raise the memory limit to 6.2 GiB."],
    ["other_programs", "Close other programs: 1.2 GiB more must be free on this device, and they hold 2.9 GiB now."],
    ["other_programs", "Close other programs: they hold 2.9 GiB of the 4 GiB missing."],
    ["model", "Choose a smaller model: the least this one needs is 9.5 GiB; Llama 3.2 3B fits as you asked."],
    ["card", "Use a card with 16 GiB: on RTX 4060 Ti, 16 GB it fits as you asked."],
  ];
  for (const [setting, words] of said) {
    const remedy = { setting, value: "an-id", words, saves_bytes: 0, enough: true };
    const chinese = remedyWords(remedy, "zh");
    expect(chinese, setting).toMatch(/[\u4e00-\u9fff]/);
    expect(chinese, setting).not.toContain("an-id");
    const without = setting === "micro_batch" ? words.replace("1 sequence", "") : words;
    expect(figures(chinese), setting).toEqual(figures(without));
    expect(remedyWords(remedy, "en")).toBe(words);
  }
  expect(remedyWords({ setting: "card", value: "x", words: said.at(-1)?.[1] ?? "", saves_bytes: 0, enough: true }, "zh")).toContain(
    "RTX 4060 Ti, 16 GB",
  );
});

test("advice on a card is said in Chinese with its values, and without them where its form is new", () => {
  const words = (code: string, message: string) => adviceWords({ code, message, next_step: "n" }, "zh")[0];
  expect(words("hardware.memory_taken", "Other programs hold 2.5 GiB of the card's 12 GiB: Game.exe 1.5 GiB.")).toBe(
    "其他程序占用了显卡 12 GiB 中的 2.5 GiB：Game.exe 1.5 GiB。",
  );
  expect(words("hardware.memory_taken", "Other programs hold 2.5 GiB of the card's 12 GiB.")).toMatch(/12 GiB 中的 2\.5 GiB。$/);
  expect(words("hardware.narrow_link", "The card is connected with 8 of its 16 PCIe lanes.")).toMatch(/16 条.*8 条/);
  expect(words("hardware.low_power", "Brand new.")).toMatch(/功率上限/);
});

test("what another value would do is said with what the engine counts as a difference", () => {
  const change: Change = { value: "None", bytes: -(2 ** 30), time_s: 90, n_over_length: 0, fits: true, config: openConfig() };
  const words = (other: Partial<Change>, setting = "weight_cache") =>
    changeWords({ setting, change: { ...change, ...other }, if_changed: "" } as Reason, "zh", zh);
  expect(words({})).toBe("不保留：−1.00 GiB，+2 分");
  expect(words({ value: "As many as fit", bytes: 2 ** 18, time_s: 0.4 })).toBe("放得下多少就保留多少：没有额外开销");
  expect(words({ value: "4,096 tokens", n_over_length: -38, time_s: 0, fits: false })).toBe(
    "4,096 个词元：超长样本 −38 条，−1.00 GiB，放不下",
  );
  const rate = { setting: "learning_rate", change: null, if_changed: "6.25e-5: learns slower, forgets less. No cost." };
  expect(changeWords(rate as Reason, "zh", zh)).toMatch(/^6\.25e-5：/);
});
