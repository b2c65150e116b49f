import { expect, test } from "vitest";

import { isSpecial, turns, visible, type Token } from "./turns";

const token = (text: string, learned = false): Token => ({ id: 0, text, learned });
const all = (shown: ReturnType<typeof turns>) => shown.flatMap((t) => t.tokens.map(({ token: { text } }) => text));

test("no token is lost and none comes twice, whatever the template", () => {
  for (const texts of [
    ["<|im_start|>", "user", "\n", "Hi", "<|im_end|>", "<|im_start|>", "assistant", "\n", "Yo", "<|im_end|>"],
    ["<|begin_of_text|>", "<|start_header_id|>", "user", "<|end_header_id|>", "Hi"],
    ["<s>", "[INST]", " Hi", "[/INST]", " Yo", "</s>"],
    ["Once", " upon"],
    [],
  ])
    expect(all(turns(texts.map((t) => token(t))))).toEqual(texts);
});

test("turns begin where the template opens them, with their role", () => {
  const header = (role: string) => ["<|start_header_id|>", role, "<|end_header_id|>", "\n\n", "Hi", "<|eot_id|>"];
  const texts = ["<|begin_of_text|>", ...header("system"), ...header("user")];
  const shown = turns(texts.map((t) => token(t)));
  expect(shown.map((t) => t.role)).toEqual(["system", "user"]);
});

test("a role that is several tokens is read whole", () => {
  const shown = turns(["<|im_start|>", "ass", "istant", "\n", "Hi"].map((t) => token(t)));
  expect(shown.map((t) => t.role)).toEqual(["assistant"]);
  expect(turns(["<|im_start|>", "no", "body", "\n"].map((t) => token(t)))[0]?.role).toBeNull();
});

test("without a template the split is between read and learned", () => {
  const shown = turns([token("Q"), token(":"), token("A", true), token("</s>", true)]);
  expect(shown.map((t) => [t.tokens.length, t.nLearned])).toEqual([
    [2, 0],
    [2, 2],
  ]);
});

test("markers are told from words, and breaks are made visible", () => {
  expect(["<|im_end|>", "</s>", "[INST]", "<start_of_turn>"].every(isSpecial)).toBe(true);
  expect(["<", "a<b>", "[1]", "<div>", "hello"].some(isSpecial)).toBe(false);
  expect(visible("a\r\nb\n\tc")).toBe("a↵b↵⇥c");
});
