import { expect, test } from "vitest";

import type { Rung } from "$lib/bindings/Rung";
import { formatter } from "$lib/format";
import type { Note, PaceNote } from "$lib/stores/run-state";

import { noteWords, paceWords } from "./engine";

const at = { step: 12, timeMs: 0 };
const zh = formatter("zh");

test("a rung says in Chinese every value that changed, and no other", () => {
  const from: Rung = {
    micro_batch: 4,
    accumulation: 4,
    head_rows: 256,
    recompute: "n",
    n_layers_eased: 0,
    mlp_rows: null,
    offload_inputs: false,
    n_layers_cached: 4,
  };
  const note = (to: Partial<Rung>): Note => ({
    ...at,
    kind: "rung",
    reason: "r",
    words: "w",
    from,
    to: { ...from, ...to },
  });
  expect(noteWords(note({ micro_batch: 2, accumulation: 8 }), "zh", zh)[0]).toMatch(/2 条.*8 次.*4 × 4/);
  expect(noteWords(note({ micro_batch: 2, accumulation: 8 }), "zh", zh)[0]).not.toContain("256");
  expect(noteWords(note({ head_rows: 128 }), "zh", zh)[0]).toMatch(/128 行.*256 行/);
  expect(noteWords(note({ n_layers_cached: 0 }), "zh", zh)[0]).toBe("内存不足，此后：不再保留反量化的权重。");
  expect(noteWords(note({ head_rows: 128 }), "en", formatter("en"))).toEqual(["r", "w"]);
  expect(noteWords(note({ mlp_rows: 1024, offload_inputs: true }), "zh", zh)[0]).toMatch(/1024.*系统内存/);
  const reason = "The rehearsal took 6 GiB, 2 GiB more than planned, and 5 GiB are free for it.";
  const rehearsed = { ...note({ micro_batch: 2, accumulation: 8 }), reason };
  expect(noteWords(rehearsed, "zh", zh)[0]).toMatch(/预演用了 6 GiB.*2 GiB.*5 GiB.*2 条/);
});

test("what ran short of memory is said in Chinese with its values", () => {
  const said: [string, string, string][] = [
    ["run.memory_retried", "Memory ran out after step 7: x. What could be freed is, and it is tried again.", "第 7 步"],
    ["run.on_rung", "Memory was short earlier in this run. It goes on with micro-batches of 2.", "较省内存"],
    ["run.evaluation_smaller", "x. The evaluation goes on with at most 512 tokens at once.", "512"],
    ["run.evaluation_skipped", "Step 9 is not evaluated: x.", "第 9 步"],
    ["run.samples_skipped", "The sample prompts are not answered after step 4: x.", "第 4 步"],
    ["run.checkpoint_skipped", "No checkpoint was made after step 5: x. The next one is tried in its turn.", "第 5 步"],
    [
      "run.card_filling",
      "Other programs have taken 2 GiB of the card since the run began: 1 GiB are free, and the next evaluation with its " +
        "answers needs 3 GiB. Close them before then; otherwise the run goes on with less, and slower.",
      "2 GiB：剩余 1 GiB，下一次评估和回答需要 3 GiB",
    ],
    ["run.card_spilled", "The last 3 steps took 4.5 times as long as usual while the card is 99 % full: the driver", "4.5 倍"],
  ];
  for (const [code, message, words] of said) {
    const note: Note = { ...at, kind: "warning", code, message };
    expect(noteWords(note, "zh", zh)[0], code).toContain(words);
  }
});

test("a change of the loss scale is said with its values and how often it was halved", () => {
  const note: Note = { ...at, kind: "scale", reason: "A gradient overflowed.", from: 65536, to: 32768, nHalved: 3 };
  expect(noteWords(note, "en", formatter("en")).join(" ")).toMatch(/^A gradient overflowed\. .*32,768.*3 times/);
  expect(noteWords(note, "zh", zh).join("")).toMatch(/65,536.*f16.*同样的样本.*32,768.*3 次/);
  expect(noteWords({ ...note, to: 131072 }, "zh", zh)[0]).not.toContain("重做");
});

test("a pause says until when where that is known, and an unknown reason stays in the engine's words", () => {
  const untilMs = new Date().setHours(7, 0, 0, 0);
  const pause: PaceNote = { ...at, kind: "pace", pace: "paused", code: "governor.quiet_hours", message: "m", untilMs };
  expect(paceWords(pause, "zh", zh)).toMatch(/安静时段.*07:00/);
  expect(paceWords({ ...pause, untilMs: null }, "zh", zh)).not.toContain("07:00");
  expect(paceWords({ ...pause, code: "governor.brand_new" }, "zh", zh)).toBe("m");
  expect(paceWords(pause, "en", formatter("en"))).toBe("m");
});

test("what a rehearsal found out is said in Chinese with its values", () => {
  const said: [string, string, string[]][] = [
    [
      "rehearsal.slower",
      "The rehearsal expects 25 min 00 s; the plan said 16 min 40 s: 50 % more time.",
      ["25 min 00 s", "16 min 40 s", "50"],
    ],
    ["rehearsal.incomplete", "Not everything could be rehearsed: the disk. The run goes on, by the plan.", ["the disk"]],
  ];
  for (const [code, message, values] of said) {
    const note: Note = { ...at, kind: "warning", code, message };
    expect(noteWords(note, "en", formatter("en"))[0]).toBe(message);
    const words = noteWords(note, "zh", zh)[0];
    expect(words, code).toMatch(/预演/);
    for (const value of values) expect(words, code).toContain(value);
  }
});
