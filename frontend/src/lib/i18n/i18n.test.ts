import { expect, test } from "vitest";

import { en } from "./en";
import { explain, itemLabel } from "./engine";
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
  const meant = ["app.name", "model.pathPlaceholder", "data.pathPlaceholder", "plan.alpha", "settings.english"];
  const allowed = (key: string) =>
    meant.includes(key) || key.startsWith("settings.keyList") || key === "model.bundled";
  expect(same.map(([key]) => key).filter((key) => !allowed(key))).toEqual([]);
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
