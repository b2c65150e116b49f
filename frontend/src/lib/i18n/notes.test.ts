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
  expect(noteWords(note({ recompute: "c1" }), "zh", zh)[0]).toBe("内存不足，此后：重算方式 C1（原为 N）。");
  expect(noteWords(note({ recompute: "c0", n_layers_eased: 9 }), "zh", zh)[0]).toBe("内存不足，此后：重算方式 C0（原为 N）。");
  const eased = note({});
  if (eased.kind === "rung") {
    eased.from = { ...from, recompute: "c1", n_layers_eased: 9 };
    eased.to = { ...eased.from, n_layers_eased: 0 };
  }
  expect(noteWords(eased, "zh", zh)[0]).toBe("内存不足，此后：比 C1 少重算的层为 0 层（原为 9 层）。");
  const reason = "The rehearsal took 6 GiB, 2 GiB more than planned, and 5 GiB are free for it.";
  const rehearsed = { ...note({ micro_batch: 2, accumulation: 8 }), reason };
  expect(noteWords(rehearsed, "zh", zh)[0]).toMatch(/预演用了 6 GiB.*2 GiB.*5 GiB.*2 条/);
});

test("what ran short of memory is said in Chinese with its values", () => {
  const said: [string, string, string][] = [
    ["run.memory_retried", "Memory ran out after step 7: x. What could be freed is, and it is tried again.", "第 7 步"],
    [
      "run.on_rung",
      "Memory was short earlier in this run. It goes on with 2 sequences at once instead of 4, and 8 times a step; " +
        "recompute mode C0 instead of C1.",
      "较省内存的方式继续：一次 2 条序列（原为 4 条），每步 8 次；重算方式 C0（原为 C1）；所学",
    ],
    ["run.evaluation_smaller", "x. The evaluation goes on with at most 512 tokens at once.", "512"],
    ["run.evaluation_skipped", "Step 9 is not evaluated: x.", "第 9 步"],
    ["run.samples_skipped", "The sample prompts are not answered after step 4: x.", "第 4 步之后没有回答"],
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

test("what a run says of its rows, its checkpoints and its disk is said in Chinese with its values", () => {
  const said: [string, string, string][] = [
    [
      "data.rows_reported",
      "12 of 480 rows are not trained as they stand, 3 of them cut to 512 tokens, 4 of them longer than 512 tokens; the " +
        "first is row 7 (line 9): 700 tokens against the limit of 512; cut to 512. All are listed in problems.json of the run.",
      "480 行中有 12 行没有原样训练，其中 3 行截断到 512 个词元，其中 4 行超过 512 个词元；第一条：第 7 条（第 9 行），" +
        "700 个词元，上限为 512；已截断。全部列在运行的 problems.json 中。",
    ],
    [
      "data.rows_reported",
      "1 of 480 rows are not trained as they stand; the first is row 7: the text is empty. All are listed in problems.json " +
        "of the run.",
      "480 行中有 1 行没有原样训练；第一条：第 7 条，文本为空。全部列在运行的 problems.json 中。",
    ],
    ["run.checkpoint_damaged", "A checkpoint is passed over: step 40 is damaged.", "跳过了一个检查点：step 40 is damaged。"],
    [
      "run.no_evaluation",
      "Nothing is held out of 1 example, so nothing is evaluated and the last step counts as the best.",
      "1 条样本中没有留出任何一条，因此不做评估，最后一步算作最佳。",
    ],
    [
      "run.reserve_used",
      "The disk is full: this checkpoint took the space set aside for it. Free some space, or the next one fails and ends " +
        "the run.",
      "磁盘已满：这个检查点用掉了为它预留的空间。请腾出空间，否则下一个检查点会失败，运行随之结束。",
    ],
    [
      "run.no_reserve",
      "No space could be set aside for a checkpoint: 40 MiB are missing. It is tried again with each one; until then a disk " +
        "that fills up costs the steps since the last.",
      "没有为检查点预留出磁盘空间：40 MiB are missing。每次保存时会再试；在此之前，磁盘写满会丢失上一个检查点之后的步数。",
    ],
    ["run.checkpoint_not_removed", "An old checkpoint is still there: step-40: in use.", "一个旧的检查点没有删除：step-40: in use。"],
    ["rehearsal.unreadable", "What was rehearsed is not known any more: no file.", "预演的结果读不出来：no file。"],
  ];
  for (const [code, message, words] of said)
    expect(noteWords({ ...at, kind: "warning", code, message }, "zh", zh)[0], code).toBe(words);
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
