import { expect, test } from "vitest";

import { formatter } from "$lib/format";
import type { Note, PaceNote } from "$lib/stores/run-state";

import { noteWords, paceWords } from "./engine";

const at = { step: 12, timeMs: 0 };
const zh = formatter("zh");

test("a rung says in Chinese every value that changed, and no other", () => {
  const from = { micro_batch: 4, accumulation: 4, head_rows: 256, recompute: "n" as const, n_layers_eased: 0 };
  const note = (to: Partial<typeof from>): Note => ({
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
  expect(noteWords(note({ head_rows: 128 }), "en", formatter("en"))).toEqual(["r", "w"]);
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
    [
      "rehearsal.over_budget",
      "The rehearsal took 6 GiB, 2 GiB more than planned, and 5 GiB are free for it. The run goes on; close other " +
        "programs if it runs short. The next plan counts what this one took.",
      ["6 GiB", "2 GiB", "5 GiB"],
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
