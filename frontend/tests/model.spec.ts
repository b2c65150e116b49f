import { expect, test, type Page } from "@playwright/test";

import { at, expectQuiet, LANGUAGES, open, shot, THEMES } from "./page";

expectQuiet();

/** The draft is there: the window is open at its data. */
const ready = (page: Page) => expect(at(page, "data-ready")).toBeVisible();

async function toModel(page: Page): Promise<void> {
  await at(page, "step-model").click();
  await expect(at(page, "catalogue-row").first()).toBeVisible();
}

const levels = (page: Page) =>
  at(page, "catalogue-row").evaluateAll((rows) => rows.map((row) => (row as HTMLElement).dataset.level));
const ids = (page: Page) =>
  at(page, "catalogue-row").evaluateAll((rows) => rows.map((row) => (row as HTMLElement).dataset.model));

for (const lang of LANGUAGES)
  for (const theme of THEMES)
    test(`every published model says whether and how it fits the chosen card, ${lang}, ${theme}`, async ({ page }) => {
      await open(page, "draft", lang, theme);
      await ready(page);
      await at(page, "step-card").click();
      await at(page, "card-search").fill("3060 12gb");
      await page.locator("[data-card=rtx-3060-12gb]").check();
      await toModel(page);
      const found = await levels(page);
      const order = ["whole", "recompute", "offload", "large", "refused"];
      expect(found).toEqual(found.toSorted((a, b) => order.indexOf(a ?? "") - order.indexOf(b ?? "")));
      expect(new Set(found).size).toBeGreaterThan(1);
      await expect(at(page, "catalogue-row").first()).toContainText(lang === "en" ? "NF4 base" : "NF4 基座");
      await at(page, "catalogue").scrollIntoViewIfNeeded();
      await shot(page, "2-model-catalogue", lang, theme);
    });

test("the catalogue follows the card and is ordered by key", async ({ page }) => {
  await open(page, "draft", "en", "light");
  await ready(page);
  await toModel(page);
  const large = async () => (await levels(page)).filter((level) => level === "large").length;
  const here = await large();
  await at(page, "step-card").click();
  await at(page, "card-search").fill("h200");
  await page.locator("[data-card=h200-sxm-141gb]").check();
  await toModel(page);
  expect(await large()).toBeLessThan(here);
  await at(page, "order-size").focus();
  await page.keyboard.press("Enter");
  await expect(at(page, "order-size")).toHaveAttribute("aria-pressed", "true");
  expect((await ids(page))[0]).toBe("smollm2-135m");
});

test("a wish that a model contradicts is said at that model", async ({ page }) => {
  await open(page, "draft", "en", "light");
  await ready(page);
  await at(page, "step-plan").click();
  await at(page, "setting-length").fill("4096");
  await page.keyboard.press("Enter");
  await toModel(page);
  await expect(page.locator("[data-model='tinyllama-1.1b']")).toHaveAttribute("data-level", "refused");
  await expect(page.locator("[data-model='tinyllama-1.1b']")).toContainText(/limit of 2048/);
});
