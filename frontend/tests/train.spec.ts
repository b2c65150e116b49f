import { expect, test } from "@playwright/test";

import { at, expectQuiet, LANGUAGES, open, shot, THEMES } from "./page";

expectQuiet();

for (const lang of LANGUAGES)
  for (const theme of THEMES)
    test(`a run on a card shows the card, its limits and what it did about them, ${lang}, ${theme}`, async ({ page }) => {
      await open(page, "running", lang, theme, "&card");
      await expect(at(page, "train-step")).toHaveText("128");
      for (const chart of ["utilisation", "temperature", "power"])
        await expect(at(page, `chart-${chart}`)).toHaveAttribute("aria-label", /\d/);
      await expect(at(page, "note")).toHaveCount(3);
      await expect(at(page, "verdict").locator("b")).toContainText(lang === "en" ? "Memory ran out after step 33" : "内存不足");
      await expect(at(page, "verdict")).not.toContainText(lang === "en" ? "as planned" : "按方案");
      await expect(at(page, "step-train")).toHaveAttribute("data-state", "note");
      await expect(at(page, "train-throttle")).toBeVisible();
      await shot(page, "5-train-card", lang, theme);
      await at(page, "train-notes").scrollIntoViewIfNeeded();
      await shot(page, "5-train-card-notes", lang, theme);
    });

for (const lang of LANGUAGES)
  for (const theme of THEMES)
    test(`before the first step the rehearsal stands beside the plan, ${lang}, ${theme}`, async ({ page }) => {
      await open(page, "rehearsed", lang, theme, "&card");
      await expect(at(page, "rehearsal").locator("tbody tr")).toHaveCount(5);
      await expect(at(page, "rehearsal")).toContainText("428");
      await shot(page, "5-train-rehearsal", lang, theme);
      await at(page, "step-plan").click();
      await expect(at(page, "plan-rehearsed")).toContainText("1.29 GiB");
      await shot(page, "4-plan-rehearsed", lang, theme);
      await at(page, "slider-rank").fill("64");
      await expect(at(page, "plan-rehearsed")).toHaveCount(0);
    });

test("a run that rests by itself says until when, and offers no button to continue", async ({ page }) => {
  await open(page, "resting", "en", "light", "&card");
  await expect(at(page, "verdict")).toContainText("Paused by itself.");
  await expect(at(page, "verdict")).toContainText("quiet hours");
  await expect(at(page, "train-continue")).toHaveCount(0);
  await expect(at(page, "train-stop")).toBeEnabled();
  await shot(page, "5-train-resting", "en", "light");
  await at(page, "train-overrule").click();
  await expect(at(page, "train-state")).toHaveAttribute("data-state", "running");
  await expect(at(page, "train-overrule")).toHaveCount(0);
});

test("a run on a card holds at the smallest window", async ({ page }) => {
  await page.setViewportSize({ width: 960, height: 640 });
  await open(page, "running", "zh", "dark", "&card");
  await expect(at(page, "train-step")).toHaveText("128");
  await shot(page, "9-small-train-card", "zh", "dark");
});

for (const lang of LANGUAGES)
  test(`heat and power of a run that lives are changed where it trains, ${lang}`, async ({ page }) => {
    await open(page, "running", lang, "light", "&card");
    await at(page, "train-limits-fold").click();
    await at(page, "setting-power").fill("150");
    await page.keyboard.press("Enter");
    await expect(at(page, "train-limits-fold")).toContainText("87 °C");
    await expect(at(page, "train-limits-fold")).toContainText("150 W");
    await at(page, "setting-heat").fill("30");
    await page.keyboard.press("Enter");
    await expect(at(page, "setting-heat")).toHaveAttribute("aria-invalid", "true");
    await at(page, "reason-quiet").scrollIntoViewIfNeeded();
    await shot(page, "5-train-limits", lang, "light");
    await at(page, "train-stop").click();
    await expect(at(page, "train-limits")).toHaveCount(0);
  });

test("what a run holds is not counted against the plan, and is free again when it has ended", async ({ page }) => {
  await open(page, "running", "en", "light", "&card");
  const device = at(page, "status-device");
  await expect(device).toContainText(/2\.4\d of 12\.00 GiB, \d+ °C, \d+ W/);
  await expect(at(page, "step-plan")).toHaveAttribute("data-state", "done");
  await at(page, "train-stop").click();
  await expect(device).toContainText("1.10 of 12.00 GiB");
});

test("nothing starts beside a run that was left, until it has ended", async ({ page }) => {
  await open(page, "running", "en", "light");
  await expect(at(page, "train-step")).toHaveText("128");
  await page.keyboard.press("Control+n");
  await at(page, "start-demo").click();
  await expect(at(page, "data-ready")).toBeVisible();
  await at(page, "step-plan").click();
  await expect(at(page, "plan-ready")).toBeVisible();
  await expect(at(page, "plan-start")).toBeDisabled();
  await expect(at(page, "plan-start")).toHaveAccessibleDescription(/A run is training/);
  await page.evaluate(() => dispatchEvent(new Event("mock-end")));
  await expect(at(page, "plan-start")).toBeEnabled();
});
