/** What every page test needs: opening a scenario, finding by id, and looking a screen over before it is shot. */

import { expect, test, type Page } from "@playwright/test";

export const LANGUAGES = ["en", "zh"] as const;
export const THEMES = ["light", "dark"] as const;
export type Lang = (typeof LANGUAGES)[number];
export type Theme = (typeof THEMES)[number];

const complaints = new WeakMap<Page, string[]>();

/** Opens the page as a scenario; every console error and policy violation is a failure at the end. */
export async function open(page: Page, scenario: string, lang: Lang, theme: Theme, more = ""): Promise<void> {
  const found: string[] = [];
  complaints.set(page, found);
  page.on("console", (message) => {
    if (message.type() === "error" || message.type() === "warning") found.push(message.text());
  });
  page.on("pageerror", (error) => found.push(String(error)));
  await page.addInitScript(
    ([l, t]) => localStorage.setItem("hearth.settings", JSON.stringify({ language: l, theme: t })),
    [lang, theme] as const,
  );
  await page.goto(`/?scenario=${scenario}${more}`);
  await expect(page.getByTestId("app")).toBeVisible();
}

/** For use in every spec: nothing may have been complained about. */
export const expectQuiet = () =>
  test.afterEach(({ page }) => {
    expect(complaints.get(page) ?? []).toEqual([]);
  });

export const at = (page: Page, id: string) => page.getByTestId(id);

export async function shot(page: Page, name: string, lang: Lang, theme: Theme): Promise<void> {
  await page.evaluate(() => document.fonts.ready);
  await expectNoOverflow(page);
  await expectNames(page);
  await page.screenshot({ path: `test-results/${name}-${theme}${lang === "zh" ? "-zh" : ""}.png` });
}

/** Nothing may be cut off at the right, and no text may run over its box. */
async function expectNoOverflow(page: Page): Promise<void> {
  const wide = await page.evaluate(() => {
    const out: string[] = [];
    if (document.documentElement.scrollWidth > innerWidth) out.push("the page scrolls sideways");
    for (const selector of [".head", ".strip", "main", ".status"])
      for (const element of document.querySelectorAll<HTMLElement>(selector))
        if (element.scrollWidth > element.clientWidth + 1 && selector !== ".status")
          out.push(`${selector} is ${element.scrollWidth - element.clientWidth} px too wide`);
    for (const panel of document.querySelectorAll<HTMLElement>(".panel, .facts > div, .preset"))
      for (const inner of panel.querySelectorAll<HTMLElement>("table, dl, .notice"))
        // What scrolls by itself, by key too, may be wider than what is seen of it.
        if (
          inner.closest("[role=region][tabindex='0']") === null &&
          inner.getBoundingClientRect().right > panel.getBoundingClientRect().right + 1
        )
          out.push(`something in “${panel.querySelector("h2")?.textContent}” leaves its panel`);
    for (const button of document.querySelectorAll<HTMLElement>("button.btn")) {
      const box = button.getBoundingClientRect();
      if (box.width > 0 && box.right > innerWidth + 1)
        out.push(`button “${button.textContent?.trim()}” leaves the window`);
    }
    return out;
  });
  expect(wide).toEqual([]);
}

/** Whatever can be used has a name, ids are unique, and what describes something exists. */
async function expectNames(page: Page): Promise<void> {
  const found = await page.evaluate(() => {
    const out: string[] = [];
    const named = (e: Element) =>
      (e.getAttribute("aria-label") ?? "").trim() !== "" ||
      (e.getAttribute("aria-labelledby") ?? "")
        .split(" ")
        .some((id) => document.getElementById(id)?.textContent?.trim()) ||
      (e instanceof HTMLInputElement || e instanceof HTMLSelectElement || e instanceof HTMLTextAreaElement
        ? [...(e.labels ?? [])].some((label) => label.textContent?.trim())
        : (e.textContent ?? "").trim() !== "");
    for (const e of document.querySelectorAll(
      "button, input, select, textarea, [role=img], [role=progressbar], [role=listbox], [tabindex='0']",
    ))
      if (!named(e)) out.push(`no name: ${e.outerHTML.slice(0, 120)}`);
    const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
    for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) out.push(`twice: ${id}`);
    for (const e of document.querySelectorAll("[aria-describedby]"))
      for (const id of (e.getAttribute("aria-describedby") ?? "").split(" "))
        if (document.getElementById(id) === null) out.push(`describes nothing: ${id}`);
    const primaries = document.querySelectorAll(".head .btn.primary").length;
    if (primaries > 1) out.push(`${primaries} primary actions in the head`);
    return out;
  });
  expect(found).toEqual([]);
}
