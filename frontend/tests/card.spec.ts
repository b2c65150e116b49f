import { readdirSync } from "node:fs";

import { expect, test, type Page } from "@playwright/test";

import { at, expectQuiet, LANGUAGES, open, shot, THEMES } from "./page";

expectQuiet();

/** Profiles with a card; one describes a computer without. */
const KNOWN = readdirSync("../assets/profiles").length - 1;

async function toCards(page: Page): Promise<void> {
  await expect(at(page, "data-ready")).toBeVisible();
  await at(page, "step-card").click();
  await expect(at(page, "card-ready")).toBeVisible();
}

/** Cards that plans were asked for, besides the one of the screen. */
const asked = (page: Page) => page.evaluate(() => [...((window as never)["mockPlanned"] as Set<string>)]);

for (const lang of LANGUAGES)
  for (const theme of THEMES)
    test(`this computer comes first, then every card in its group, ${lang}, ${theme}`, async ({ page }) => {
      await open(page, "draft", lang, theme);
      await toCards(page);
      await expect(at(page, "card-option").first()).toHaveAttribute("data-card", "here");
      const groups = at(page, "card-group");
      const names = await groups.evaluateAll((all) => all.map((g) => (g as HTMLElement).dataset.group));
      expect(names).toEqual(["rtx50", "rtx40", "rtx30", "rtx20", "laptop", "workstation", "datacentre"]);
      await expect(page.locator("#cards-rtx50 .state").first()).toBeVisible();
      await shot(page, "1-card-groups", lang, theme);
      for (const group of await groups.all())
        if ((await group.getAttribute("aria-expanded")) === "false") await group.click();
      await expect(at(page, "card-option")).toHaveCount(KNOWN + 1);
      await at(page, "card-search").fill("laptop 8 gb");
      await expect(at(page, "card-found")).toContainText(/\d/);
      await shot(page, "1-card-search", lang, theme);
    });

test("a card is found, chosen and left with the keyboard alone", async ({ page }) => {
  await open(page, "draft", "en", "light");
  await toCards(page);
  await page.keyboard.press("/");
  await expect(at(page, "card-search")).toBeFocused();
  await page.keyboard.type("4060 ti");
  await expect(at(page, "card-found")).toHaveText("2 cards found");
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Space");
  await expect(at(page, "verdict")).toContainText("RTX 4060 Ti, 8 GB");
  await page.keyboard.press("ArrowDown");
  await expect(at(page, "verdict")).toContainText("RTX 4060 Ti, 16 GB");
  await at(page, "card-search").focus();
  await page.keyboard.press("Escape");
  await expect(at(page, "card-found")).toHaveText("");
  await expect(page.locator("[data-card=rtx-4060-ti-16gb]")).toBeChecked();
});

test("plans are made only for the cards that can be seen", async ({ page }) => {
  await open(page, "draft", "en", "light");
  await expect(at(page, "data-ready")).toBeVisible();
  await at(page, "step-plan").click();
  await expect(at(page, "plan-ready")).toBeVisible();
  expect(await asked(page)).toEqual(["This computer"]);
  await at(page, "step-card").click();
  await expect(page.locator("#cards-rtx50 .state").first()).toBeVisible();
  await page.waitForTimeout(400);
  const first = await asked(page);
  expect(first).toContain("RTX 5090, 32 GB");
  expect(first).not.toContain("RTX 4090, 24 GB");
  expect(first.length).toBeLessThan(20);
});

for (const lang of LANGUAGES)
  for (const theme of THEMES)
    test(`a card says who holds it, how it is connected and what is worth knowing, ${lang}, ${theme}`, async ({ page }) => {
      await open(page, "draft", lang, theme, "&card&two");
      await toCards(page);
      await expect(at(page, "card-users").locator("tbody tr")).toHaveCount(3);
      await expect(at(page, "fact-link")).toContainText("PCIe 1.0 x8");
      await expect(at(page, "fact-link")).toContainText("PCIe 4.0 x16");
      await expect(at(page, "advice")).toHaveCount(2);
      await shot(page, "1-card-here", lang, theme);
      await at(page, "card-shown-1").click();
      await expect(at(page, "fact-laptop")).toBeVisible();
      await expect(at(page, "card-users")).toHaveCount(0);
      await shot(page, "1-card-second", lang, theme);
    });

for (const lang of LANGUAGES)
  test(`missing libraries are fetched with one click, interrupted and gone on with, ${lang}`, async ({ page }) => {
    await open(page, "draft", lang, "light", "&card&libraries");
    await toCards(page);
    await expect(at(page, "gpu-setup")).toContainText("432 MiB");
    await shot(page, "1-card-libraries", lang, "light");
    await at(page, "gpu-fetch").focus();
    await page.keyboard.press("Enter");
    await expect(at(page, "gpu-phase")).toContainText(/\/s|\/秒/);
    await shot(page, "1-card-fetching", lang, "light");
    await at(page, "gpu-cancel").click();
    await expect(at(page, "gpu-setup")).not.toContainText("432 MiB");
    await at(page, "gpu-fetch").click();
    await expect(at(page, "gpu-fetching")).toHaveCount(0, { timeout: 15_000 });
    await expect(at(page, "gpu-setup")).toHaveCount(0);
    await expect(at(page, "verdict")).toContainText("RTX 3060");
    await expect(at(page, "step-card")).toContainText("RTX 3060");
  });

for (const lang of LANGUAGES)
  test(`a card is described, planned for, changed, shared and deleted, ${lang}`, async ({ page }) => {
    await open(page, "draft", lang, "light");
    await toCards(page);
    await at(page, "card-search").fill("3060 12gb");
    await page.locator("[data-card=rtx-3060-12gb]").check();
    await at(page, "card-search").fill("");
    await at(page, "own-describe").click();
    await expect(at(page, "own-name")).toBeFocused();
    await expect(at(page, "own-save")).toBeDisabled();
    await page.keyboard.type("我的 3060 🔥");
    await at(page, "own-bandwidth").fill("342");
    await shot(page, "1-card-own-form", lang, "light");
    await page.keyboard.press("Enter");
    await expect(at(page, "own-form")).toHaveCount(0);
    await expect(at(page, "verdict")).toContainText("我的 3060 🔥");
    await expect(page.locator("[data-group=own]")).toBeVisible();
    await shot(page, "1-card-own", lang, "light");

    await at(page, "own-describe").click();
    await expect(at(page, "own-bandwidth")).toHaveValue("342");
    await at(page, "own-bandwidth").fill("none");
    await expect(at(page, "own-save")).toBeDisabled();
    await at(page, "own-bandwidth").fill("350");
    await at(page, "own-save").click();
    await at(page, "own-share").click();
    await expect(at(page, "own-cards").getByRole("status")).toContainText("我的 3060 🔥");
    await at(page, "own-delete").click();
    await expect(page.locator("[data-group=own]")).toHaveCount(0);
    await expect(page.locator("[data-card=here]")).toBeChecked();
    await at(page, "own-undo").click();
    await expect(page.locator("[data-card='我的 3060 🔥']")).toBeChecked();
    await at(page, "own-import").click();
    await expect(at(page, "verdict")).toContainText("Shared 3060 共享");
  });
