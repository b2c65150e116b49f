import { readdirSync, readFileSync } from "node:fs";
import { join, relative, sep } from "node:path";

import { expect, test } from "vitest";

const root = join(process.cwd(), "src");
const files = readdirSync(root, { recursive: true, withFileTypes: true })
  .filter((entry) => entry.isFile() && /\.(ts|svelte|css)$/.test(entry.name))
  .map((entry) => join(entry.parentPath, entry.name))
  .map((path) => ({ path: relative(root, path).split(sep).join("/"), text: readFileSync(path, "utf8") }));
const at = (folder: string) =>
  files.filter((f) => f.path.startsWith(`lib/${folder}/`) && !f.path.endsWith(".test.ts"));

test("only platform/ imports Tauri", () => {
  const others = files.filter((f) => !f.path.startsWith("lib/platform/") && !f.path.endsWith(".test.ts"));
  expect(others.filter((f) => f.text.includes("@tauri-apps")).map((f) => f.path)).toEqual([]);
});

test("ui knows nothing of charts or views, charts nothing of views", () => {
  const names = (found: typeof files) => found.map((f) => f.path);
  expect(names(at("ui").filter((f) => /\$lib\/(charts|views|stores|platform)/.test(f.text)))).toEqual([]);
  expect(names(at("charts").filter((f) => /\$lib\/(views|stores|platform)/.test(f.text)))).toEqual([]);
  expect(names(at("stores").filter((f) => /\$lib\/(views|ui|charts)/.test(f.text)))).toEqual([]);
});

test("numbers become words in format.ts only", () => {
  const others = files.filter(
    (f) =>
      !["lib/format.ts", "lib/axis.ts"].includes(f.path) && !f.path.endsWith(".test.ts") && !f.path.includes("mock"),
  );
  const culprits = others.filter((f) =>
    /\.to(Fixed|Precision|Exponential)\(|toLocale(String|DateString|TimeString)|Intl\.(NumberFormat|DateTimeFormat)\((?!navigator)/.test(
      f.text,
    ),
  );
  expect(culprits.map((f) => f.path)).toEqual([]);
});

test("components read roles, never raw colours", () => {
  const raw = files.filter(
    (f) =>
      f.path !== "styles/tokens.css" &&
      /#[0-9a-f]{3,8}\b|rgba?\(|hsla?\(/i.test(f.text) &&
      !f.path.endsWith(".test.ts") &&
      !f.path.includes("i18n") &&
      f.path.match(/\.(svelte|css)$/),
  );
  expect(raw.filter((f) => /:\s*[^;{}]*(#[0-9a-f]{3,8}\b|rgba?\(|hsla?\()/i.test(f.text)).map((f) => f.path)).toEqual(
    [],
  );
});

test("dark is the same whether the system or the person chose it", () => {
  const { text } = files.find((f) => f.path === "styles/tokens.css")!;
  const [bySystem, byPerson] = [...text.matchAll(/color-scheme: dark;([^}]*)\}/g)].map((found) => found[1]!.trim());
  expect(bySystem).toContain("--canvas:");
  expect(byPerson).toEqual(bySystem);
});
