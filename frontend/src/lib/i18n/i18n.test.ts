import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

import { expect, test } from "vitest";

import { en } from "./en";
import { explain, itemLabel, remark, valueWords } from "./engine";
import { systemLang } from "./index.svelte";
import { zh } from "./zh";

type Leaf = string | ((...args: string[]) => unknown);

function leaves(value: unknown, path = ""): Map<string, Leaf> {
  if (typeof value === "string" || typeof value === "function") return new Map([[path, value as Leaf]]);
  const out = new Map<string, Leaf>();
  for (const [key, inner] of Object.entries(value as object))
    for (const [at, leaf] of leaves(inner, path === "" ? key : `${path}.${key}`)) out.set(at, leaf);
  return out;
}

const english = leaves(en);
const chinese = leaves(zh);

test("both dictionaries have the same keys", () => {
  expect([...chinese.keys()].sort()).toEqual([...english.keys()].sort());
});

test("both say every value they are given", () => {
  for (const [key, leaf] of english) {
    if (typeof leaf !== "function") continue;
    const values = Array.from({ length: leaf.length }, (_, i) => `⟨${i}⟩`);
    for (const [lang, words] of [
      ["en", leaf],
      ["zh", chinese.get(key)],
    ] as const) {
      expect(typeof words, `${lang} ${key}`).toBe("function");
      const said = [(words as (...args: string[]) => unknown)(...values)].flat().join("");
      // A title's number and a few Chinese phrases leave out what their sentence does not need.
      if (key === "app.diskFree") continue;
      for (const value of values) expect(said, `${lang} ${key}`).toContain(value);
    }
  }
});

test("nothing is left in English by oversight", () => {
  const same = [...english].filter(
    ([key, leaf]) => typeof leaf === "string" && leaf === chinese.get(key) && /[a-z]{3}/.test(leaf),
  );
  const meant = ["app.name", "model.pathPlaceholder", "data.pathPlaceholder", "plan.alpha", "gpu.mirrorExample", "settings.english"];
  const allowed = (key: string) =>
    meant.includes(key) || key.startsWith("settings.keyList") || key === "model.bundled";
  expect(same.map(([key]) => key).filter((key) => !allowed(key))).toEqual([]);
});

test("no text is dead: each is asked for by its name", () => {
  const root = join(process.cwd(), "src");
  const source = readdirSync(root, { recursive: true, encoding: "utf8" })
    .filter((path) => /\.(ts|svelte)$/.test(path) && !/\.test\.ts$|[\\/](en|zh)(-around)?\.ts$/.test(path))
    .map((path) => readFileSync(join(root, path), "utf8"))
    .join("\n");
  const names = new Set([...english.keys()].map((key) => key.split(".")[1] as string));
  expect([...names].filter((name) => !new RegExp(`\\.${name}\\b|"${name}"`).test(source))).toEqual([]);
});

test("Chinese sentences end in full-width punctuation", () => {
  for (const [key, leaf] of chinese)
    if (typeof leaf === "string") expect(/[\u4e00-\u9fff][.,:;!?]($|\s)/.test(leaf), key).toBe(false);
});

test("nobody says please, oops or exclaims", () => {
  for (const [key, leaf] of english)
    if (typeof leaf === "string") expect(/please|oops|sorry|!/i.test(leaf), key).toBe(false);
});

test("the language follows the system, and is English where the system's is neither", () => {
  expect(systemLang(["zh-Hans-CN", "en"])).toBe("zh");
  expect(systemLang(["de-DE", "zh-TW"])).toBe("zh");
  expect(systemLang(["de-DE", "en-GB", "zh"])).toBe("en");
  expect(systemLang(["C"])).toBe("en");
  expect(systemLang([])).toBe("en");
});

test("an error the window has no words for keeps the engine's, and a known one keeps the values", () => {
  const unknown = { code: "model.brand_new", message: "m 1", next_step: "n" };
  expect(explain(unknown, "zh")).toEqual({ message: "m 1", next_step: "n", original: null });
  const known = { code: "run.disk_full", message: "/home has 0 bytes free", next_step: "n" };
  expect(explain(known, "zh").original).toBe("/home has 0 bytes free");
  expect(explain(known, "en")).toEqual({ message: "/home has 0 bytes free", next_step: "n", original: null });
  expect(itemLabel("brand_new", "Brand new", "zh")).toBe("Brand new");
});

test("a recompute of two kinds is said with both and with the layers", () => {
  const value = "Most (C0); part (c1) in 9 of 32 layers";
  expect(valueWords(value, "en")).toBe(value);
  expect(valueWords(value, "zh")).toBe("大部分重算（C0）；32 层中有 9 层部分重算（C1）");
  expect(valueWords("Part (C1); nothing (n) in 1 of 30 layers", "zh")).toBe("部分重算（C1）；30 层中有 1 层不重算（N）");
});

test("a remark about a model or a file keeps its values, and an unknown one the engine's words", () => {
  const ends =
    "The template ends turns with <|end|> (258), but the tokenizer's end-of-sequence token is </s> (2). The first is " +
    "learned; answers stop at both.";
  expect(remark(ends, "zh")).toMatch(/<\|end\|>（258）.*<\/s>（2）/);
  expect(remark("1 conversation does not end with the assistant; its last turn is kept", "zh")).toMatch(/^1 段/);
  expect(remark("The weights of SmolLM2 are quantised (Q4_1, Q6_K): they are", "zh")).toMatch(/Q4_1, Q6_K/);
  for (const [text, lang] of [["Brand new.", "zh"], [ends, "en"]] as const) expect(remark(text, lang)).toBe(text);
});

test("pieces that the engine joins are said one by one, an unknown one in the engine's words", () => {
  expect(remark("2 wrong: a.weight differs in 3 of 9 values; b.weight has another shape", "zh")).toBe(
    "2 个不对：a.weight 的 9 个值中有 3 个不同；b.weight 的形状不同",
  );
  const broken = "incomplete JSON, it ends early at column 58 of its line 3 (EOF); nothing after this row could be read";
  expect(remark(broken, "zh")).toBe("JSON 不完整，在其第 3 行第 58 列提前结束（EOF）；此行之后的内容无法读取");
  expect(remark("prompt 2 is encoded differently; brand new", "zh")).toBe("提示 2 的编码不同；brand new");
});
