import { expect, test } from "vitest";

import { isTyping } from "./keys.svelte";
import { rowOf } from "./data.svelte";
import { baseName } from "./model.svelte";

test("a path's last part is found on every system", () => {
  expect(baseName("/home/ana/模型/Smol LM/")).toBe("Smol LM");
  expect(baseName("D:\\Models\\Llama-3.1-8B")).toBe("Llama-3.1-8B");
  expect(baseName("file.gguf")).toBe("file.gguf");
});

test("rows that are left out are not counted as examples", () => {
  const out = (row: number) => ({ row, line: row, code: "x", reason: "", left_out: true });
  expect(rowOf(0, { problems: [] })).toBe(1);
  expect(rowOf(0, { problems: [out(1), out(2)] })).toBe(3);
  expect(rowOf(19, { problems: [out(5), out(5), out(21)] })).toBe(22);
  expect(rowOf(3, { problems: [{ ...out(2), left_out: false }] })).toBe(4);
});

test("single letters act only outside text fields", () => {
  const input = document.createElement("input");
  const box = document.createElement("input");
  box.type = "checkbox";
  expect(isTyping(input)).toBe(true);
  expect(isTyping(box)).toBe(false);
  expect(isTyping(document.createElement("textarea"))).toBe(true);
  expect(isTyping(document.body)).toBe(false);
});
