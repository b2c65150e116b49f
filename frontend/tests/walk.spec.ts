import { expect, test } from "@playwright/test";

import { at, expectQuiet, LANGUAGES, open, shot, THEMES } from "./page";

expectQuiet();

for (const lang of LANGUAGES)
  for (const theme of THEMES)
    test(`the whole job can be done by pointing and clicking, ${lang}, ${theme}`, async ({ page }) => {
      await open(page, "fresh", lang, theme);
      await expect(at(page, "start")).toBeVisible();
      await shot(page, "1-start", lang, theme);

      await at(page, "step-model").click();
      await shot(page, "2-model-empty", lang, theme);
      await at(page, "model-path").fill("/home/ana/模型 models/SmolLM2-135M-Instruct-Q4_1.gguf");
      await at(page, "model-open").click();
      await expect(at(page, "model-ready")).toBeVisible();
      await shot(page, "2-model", lang, theme);

      await at(page, "model-next").click();
      await shot(page, "3-data-empty", lang, theme);
      await at(page, "data-path").fill("/home/ana/appointments.jsonl");
      await page.keyboard.press("Enter");
      await expect(at(page, "data-ready")).toBeVisible();
      await expect(at(page, "data-examples")).toContainText("478");
      await at(page, "example-next").click();
      await at(page, "token-preview").focus();
      for (let i = 0; i < 60; i++) await page.keyboard.press("ArrowRight");
      await shot(page, "3-data", lang, theme);

      await at(page, "data-next").click();
      await expect(at(page, "plan-ready")).toBeVisible();
      await shot(page, "4-plan", lang, theme);
      const before = await at(page, "plan-verdict").textContent();
      await at(page, "setting-rank").fill("64");
      await page.keyboard.press("Enter");
      await expect(at(page, "plan-verdict")).not.toHaveText(before ?? "");
      await shot(page, "4-plan-changed", lang, theme);
      await at(page, "plan-reset").click();

      await at(page, "step-card").click();
      await expect(at(page, "card-ready")).toBeVisible();
      await shot(page, "1-card", lang, theme);

      await at(page, "step-plan").click();
      await at(page, "plan-start").click();
      await expect(at(page, "train-finished")).toBeVisible();
      await expect(at(page, "train-step")).toHaveText("212");
      await shot(page, "5-train-finished", lang, theme);

      await at(page, "train-use").click();
      await at(page, "chat-input").fill("Meet Tom at the office on 3 June at nine, just us two.");
      await at(page, "chat-send").click();
      await expect(at(page, "chat-base-0")).toHaveAttribute("data-done", "true");
      await expect(at(page, "chat-tuned-0")).toHaveAttribute("data-done", "true");
      await expect(at(page, "chat-tuned-0")).toContainText('"with":"Tom"');
      await at(page, "export-adapter").check();
      await at(page, "export-start").click();
      await expect(at(page, "proof-merged")).toHaveAttribute("data-verdict", "proven");
      await expect(at(page, "proof-adapter")).toHaveAttribute("data-verdict", "proven");
      await shot(page, "6-use", lang, theme);
    });

for (const lang of LANGUAGES)
  for (const theme of THEMES)
    test(`a run that lives is found again and can be paused, continued and stopped, ${lang}, ${theme}`, async ({
      page,
    }) => {
      await open(page, "running", lang, theme);
      await expect(at(page, "train-step")).toHaveText("128");
      await expect(at(page, "step-train")).toHaveAttribute("data-state", "running");
      const plot = at(page, "chart-loss");
      await plot.hover({ position: { x: 250, y: 80 } });
      await shot(page, "5-train", lang, theme);
      await page.mouse.move(5, 5);

      await page.keyboard.press("Control+p");
      await expect(at(page, "train-continue")).toBeVisible();
      await shot(page, "5-train-paused", lang, theme);
      await at(page, "train-continue").click();
      await at(page, "train-stop").click();
      await expect(at(page, "train-resume")).toBeVisible();
      await shot(page, "5-train-stopped", lang, theme);

      await at(page, "nav-runs").click();
      await expect(at(page, "run-row").first()).toBeVisible();
      await page.waitForTimeout(150);
      await shot(page, "0-runs", lang, theme);
      await at(page, "nav-settings").click();
      await shot(page, "7-settings", lang, theme);
    });

test("a reload replays the run and shows the same screen", async ({ page }) => {
  await open(page, "running", "en", "light");
  await expect(at(page, "train-step")).toHaveText("128");
  const before = await at(page, "verdict").textContent();
  await page.reload();
  await expect(at(page, "train-step")).toHaveText("128");
  await expect(at(page, "verdict")).toHaveText(before ?? "");
});

for (const lang of LANGUAGES)
  for (const theme of THEMES)
    test(`what fails says what failed and what to do, ${lang}, ${theme}`, async ({ page }) => {
      await open(page, "failed", lang, theme);
      await expect(at(page, "error")).toHaveAttribute("data-code", "run.disk_full");
      await expect(at(page, "train-resume")).toBeVisible();
      await shot(page, "8-failed", lang, theme);

      await at(page, "step-model").click();
      await at(page, "model-path").fill("/home/ana/models/pickle-only");
      await at(page, "model-open").click();
      await expect(at(page, "error")).toHaveAttribute("data-code", "model.pickle_only");
      await expect(at(page, "step-model")).toHaveAttribute("data-state", "stop");
      await shot(page, "8-model-refused", lang, theme);
    });

test("a plan that does not fit blocks the start and offers what would make it fit", async ({ page }) => {
  await open(page, "small", "en", "light");
  await expect(at(page, "data-ready")).toBeVisible();
  await at(page, "step-plan").click();
  await expect(at(page, "plan-verdict")).toContainText("Does not fit");
  await expect(at(page, "plan-start")).toBeDisabled();
  await shot(page, "8-plan-short", "en", "light");
  await page.getByRole("button", { name: "Apply" }).last().click();
  await expect(at(page, "setting-base")).toHaveValue("nf4");
});

test("a setting the engine refuses is said where it is, and can be taken back", async ({ page }) => {
  await open(page, "draft", "en", "light");
  await expect(at(page, "data-ready")).toBeVisible();
  await at(page, "step-plan").click();
  await at(page, "setting-length").fill("16");
  await page.keyboard.press("Enter");
  await expect(at(page, "error")).toHaveAttribute("data-code", "plan.all_too_long");
  await at(page, "plan-reset-error").click();
  await expect(at(page, "plan-ready")).toBeVisible();
});

test("a file that cannot be read takes the plan of the one before away", async ({ page }) => {
  await open(page, "draft", "en", "light");
  await expect(at(page, "data-ready")).toBeVisible();
  await at(page, "step-plan").click();
  await expect(at(page, "plan-start")).toBeEnabled();
  await page.evaluate(() => dispatchEvent(new CustomEvent("mock-drop", { detail: "/home/ana/missing.jsonl" })));
  await expect(at(page, "error")).toHaveAttribute("data-code", "data.not_found");
  await expect(at(page, "data-ready")).toHaveCount(0);
  await page.keyboard.press("Control+4");
  await expect(at(page, "plan-ready")).toHaveCount(0);
  await expect(at(page, "plan-start")).toBeDisabled();
});

test("another card is planned for, and a run does not start for it", async ({ page }) => {
  await open(page, "draft", "en", "light");
  await expect(at(page, "data-ready")).toBeVisible();
  await at(page, "step-card").click();
  await at(page, "card-search").fill("3060 12 GB");
  await page.locator("[data-card=rtx-3060-12gb]").check();
  await expect(at(page, "verdict")).toContainText("RTX 3060");
  await shot(page, "1-card-elsewhere", "en", "light");
  await at(page, "step-plan").click();
  await expect(at(page, "plan-start")).toBeDisabled();
  await shot(page, "4-plan-elsewhere", "en", "light");
});

test("every chart is also a table, by key and by button", async ({ page }) => {
  await open(page, "running", "en", "light");
  await at(page, "chart-loss").focus();
  await page.keyboard.press("ArrowLeft");
  await expect(page.locator(".readout").first()).toContainText("Step 127");
  await page.keyboard.press("t");
  await expect(page.locator("[data-testid=chart-loss] table")).toBeVisible();
  await at(page, "chart-memory-table").click();
  await expect(page.locator("[data-testid=chart-memory] tbody tr")).toHaveCount(128);
  await shot(page, "5-train-tables", "en", "light");
});

test("a dropped file goes where it belongs", async ({ page }) => {
  const drop = (path: string) =>
    page.evaluate((p) => dispatchEvent(new CustomEvent("mock-drop", { detail: p })), path);
  await open(page, "fresh", "en", "light");
  await expect(at(page, "start")).toBeVisible();
  await drop("/home/ana/模型/model.GGUF");
  await expect(at(page, "model-ready")).toBeVisible();
  await drop("/home/ana/数据 🔥.csv");
  await expect(at(page, "data-ready")).toBeVisible();
  await expect(at(page, "verdict")).toContainText("数据 🔥.csv");
});

test("a file dropped before there is a model waits for it", async ({ page }) => {
  await open(page, "fresh", "en", "light");
  await expect(at(page, "start")).toBeVisible();
  await page.evaluate(() => dispatchEvent(new CustomEvent("mock-drop", { detail: "/home/ana/a.jsonl" })));
  await expect(at(page, "verdict")).toContainText("Choose a model first");
  await at(page, "step-model").click();
  await at(page, "model-bundled").click();
  await at(page, "model-next").click();
  await expect(at(page, "data-ready")).toBeVisible();
});

for (const lang of LANGUAGES)
  test(`every screen holds at the smallest window, ${lang}`, async ({ page }) => {
    await page.setViewportSize({ width: 960, height: 640 });
    await open(page, "finished", lang, "light");
    await expect(at(page, "chat-input")).toBeVisible();
    for (const step of ["card", "model", "data", "plan", "train", "use"]) {
      await at(page, `step-${step}`).click();
      await page.waitForTimeout(120);
      await shot(page, `9-small-${step}`, lang, "light");
    }
  });

test("keys reach every step and the runs, and the primary action", async ({ page }) => {
  await open(page, "draft", "en", "light");
  await expect(at(page, "data-ready")).toBeVisible();
  const steps = ["card", "model", "data", "plan", "train", "use"];
  for (const [i, step] of steps.entries()) {
    await page.keyboard.press(`Control+${i + 1}`);
    await expect(at(page, `step-${step}`)).toHaveAttribute("aria-current", "step");
  }
  await page.keyboard.press("Control+0");
  await expect(at(page, "runs")).toBeVisible();
  await page.keyboard.press("Control+3");
  await page.keyboard.press("]");
  await expect(at(page, "example-number")).toHaveValue("2");
  await page.keyboard.press("Control+Enter");
  await expect(at(page, "plan-ready")).toBeVisible();
  await page.keyboard.press("Control+Enter");
  await expect(at(page, "train-finished")).toBeVisible();
});
