import { expect, test, type Page } from "@playwright/test";

import { at, expectQuiet, LANGUAGES, open, shot, THEMES } from "./page";

expectQuiet();

async function toPlan(page: Page): Promise<void> {
  await expect(at(page, "data-ready")).toBeVisible();
  await at(page, "step-plan").click();
  await expect(at(page, "plan-ready")).toBeVisible();
}

const bytesLabel = (page: Page) => at(page, "memory-bar").getAttribute("aria-label");

for (const [slider, value, setting, reason, words] of [
  ["slider-rank", "64", "setting-rank", "reason-rank", "Room for new habits"],
  ["slider-length", "1024", "setting-length", "reason-length", ""],
  ["slider-micro-batch", "8", "setting-micro-batch", "reason-batch", "2 micro-batches of 8"],
] as const)
  test(`${slider} moves its number, the bar and the reason`, async ({ page }) => {
    await open(page, "draft", "en", "light");
    await toPlan(page);
    const [bar, row] = [await bytesLabel(page), await at(page, reason).textContent()];
    await at(page, slider).fill(value);
    await expect(at(page, setting)).toHaveValue(value);
    await expect(at(page, "memory-bar")).not.toHaveAttribute("aria-label", bar ?? "");
    if (words !== "") {
      await expect(at(page, reason)).not.toHaveText(row ?? "");
      await expect(at(page, reason)).toContainText(words);
    }
  });

test("the micro-batch slider keeps the batch, by value and by key", async ({ page }) => {
  await open(page, "draft", "en", "light");
  await toPlan(page);
  await expect(at(page, "effective-batch")).toHaveText("16");
  for (const [key, micro, times] of [
    ["ArrowRight", "8", "2"],
    ["ArrowRight", "16", "1"],
    ["ArrowRight", "16", "1"],
    ["ArrowLeft", "8", "2"],
    ["Home", "1", "16"],
  ] as const) {
    await at(page, "slider-micro-batch").press(key);
    await expect(at(page, "setting-micro-batch")).toHaveValue(micro);
    await expect(at(page, "setting-accumulation")).toHaveValue(times);
    await expect(at(page, "slider-micro-batch")).toHaveValue(micro);
    await expect(at(page, "effective-batch")).toHaveText("16");
  }
});

test("a slider shows in the bar within a frame of page work", async ({ page }) => {
  await open(page, "draft", "en", "light");
  await toPlan(page);
  const times = await page.evaluate(async () => {
    const slider = document.querySelector<HTMLInputElement>("[data-testid=slider-rank]");
    const bar = document.querySelector<HTMLElement>("[data-testid=memory-bar]");
    if (slider === null || bar === null) throw new Error("no slider or no bar");
    const changed = () =>
      new Promise<void>((resolve) => {
        const observer = new MutationObserver(() => {
          observer.disconnect();
          resolve();
        });
        observer.observe(bar, { attributes: true, attributeFilter: ["aria-label"] });
      });
    for (let i = 0; i < 40; i++) {
      const shown = changed();
      performance.mark("moved");
      slider.value = String(8 + 4 * (i % 24));
      slider.dispatchEvent(new Event("input", { bubbles: true }));
      await shown;
      // Styles and layout are part of it.
      bar.getBoundingClientRect();
      performance.measure("slider", "moved");
      await new Promise(requestAnimationFrame);
    }
    return performance.getEntriesByName("slider").map((entry) => entry.duration);
  });
  const sorted = times.toSorted((a, b) => a - b);
  const median = sorted[sorted.length / 2] ?? Infinity;
  test.info().annotations.push({ type: "slider to bar", description: `median ${median} ms, all ${times.join(" ")}` });
  expect(median).toBeLessThan(16);
});

test("a wish that is refused leaves its slider where it can be moved back", async ({ page }) => {
  await open(page, "draft", "en", "light");
  await toPlan(page);
  await at(page, "setting-length").fill("16");
  await page.keyboard.press("Enter");
  await expect(at(page, "error")).toHaveAttribute("data-code", "plan.all_too_long");
  await expect(at(page, "plan-start")).toBeDisabled();
  await shot(page, "8-plan-refused", "en", "light");
  await at(page, "slider-length").fill("512");
  await expect(at(page, "plan-ready")).toBeVisible();
  await expect(at(page, "error")).toHaveCount(0);
});

test("the bar and its legend name the margin and what others use", async ({ page }) => {
  await open(page, "draft", "en", "light");
  await toPlan(page);
  const sum = async (ids: string[]) => {
    let total = 0;
    for (const id of ids) total += Number(await at(page, id).locator(".num").textContent());
    return total;
  };
  for (const id of ["margin", "others"]) {
    await expect(at(page, `legend-${id}`)).toBeVisible();
    await expect(at(page, "memory-bar-whole").locator(`[data-segment="~${id}"]`)).toBeVisible();
  }
  const planned = Number(await page.locator("[data-testid=plan-items] tr.sum .num").first().textContent());
  const rest = await sum(["legend-free", "legend-margin", "legend-others"]);
  expect(planned + rest).toBeCloseTo(await sum(["legend-total"]), 1);
});

test("a remedy with fewer sequences at once keeps the batch", async ({ page }) => {
  await open(page, "small", "en", "light");
  await expect(at(page, "data-ready")).toBeVisible();
  await at(page, "step-plan").click();
  await expect(at(page, "plan-verdict")).toContainText("Does not fit");
  await at(page, "apply-micro_batch").click();
  await expect(at(page, "setting-micro-batch")).toHaveValue("1");
  await expect(at(page, "setting-accumulation")).toHaveValue("16");
  await expect(at(page, "effective-batch")).toHaveText("16");
});

for (const lang of LANGUAGES)
  test(`where no setting is enough, another card is compared with and another model looked for, ${lang}`, async ({ page }) => {
    await open(page, "small", lang, "light");
    await expect(at(page, "data-ready")).toBeVisible();
    await at(page, "step-plan").click();
    await at(page, "slider-length").fill("1024");
    await at(page, "apply-base").click();
    await expect(at(page, "apply-base")).toHaveCount(0);
    await at(page, "apply-card").click();
    await expect(at(page, "compare-select")).toHaveValue("rtx-4060-ti-16gb");
    await expect(at(page, "compare-verdict")).toHaveAttribute("data-fits", "true");
    await shot(page, "8-plan-no-setting", lang, "light");
    await at(page, "apply-model").click();
    await expect(at(page, "step-model")).toHaveAttribute("aria-current", "step");
  });

test("a disabled start can be reached by key and says why", async ({ page }) => {
  await open(page, "small", "en", "light");
  await expect(at(page, "data-ready")).toBeVisible();
  await at(page, "step-plan").click();
  await expect(at(page, "plan-verdict")).toContainText("Does not fit");
  await expect(at(page, "plan-start")).toHaveAttribute("title", /Does not fit/);
  await at(page, "plan-start").focus();
  await expect(at(page, "plan-start")).toBeFocused();
  await page.keyboard.press("Enter");
  await expect(at(page, "step-plan")).toHaveAttribute("aria-current", "step");
});

test("a memory limit is said, raised by its remedy and taken back", async ({ page }) => {
  await open(page, "draft", "en", "light");
  await toPlan(page);
  await page.getByRole("button", { name: "Leave room" }).click();
  await expect(at(page, "memory-limit")).toBeVisible();
  await expect(at(page, "legend-limit")).toBeVisible();
  await shot(page, "4-plan-limited", "en", "light");
  await at(page, "setting-recompute").selectOption("n");
  await expect(at(page, "plan-verdict")).toContainText("Does not fit");
  await at(page, "apply-memory_limit_bytes").click();
  await expect(at(page, "plan-verdict")).toContainText("Fits");
  await at(page, "limit-clear").click();
  await expect(at(page, "memory-limit")).toHaveCount(0);
  await expect(at(page, "plan-verdict")).toContainText("Fits");
});

for (const lang of LANGUAGES)
  for (const theme of THEMES)
    test(`another card's bar, time and fit stand beside the plan, ${lang}, ${theme}`, async ({ page }) => {
      await open(page, "draft", lang, theme);
      await toPlan(page);
      const verdict = await at(page, "plan-verdict").textContent();
      await at(page, "compare-select").selectOption("rtx-4060-8gb");
      await expect(at(page, "compare-verdict")).toHaveAttribute("data-fits", "true");
      await expect(at(page, "compare-time")).toContainText(/\d/);
      await expect(at(page, "compare-bar")).toBeVisible();
      await shot(page, "4-plan-compare", lang, theme);
      await at(page, "compare-select").selectOption("any");
      await at(page, "compare-memory").fill("1");
      await page.keyboard.press("Enter");
      await expect(at(page, "compare-verdict")).toHaveAttribute("data-fits", "false");
      await shot(page, "4-plan-compare-short", lang, theme);
      await expect(at(page, "plan-verdict")).toHaveText(verdict ?? "");
      await expect(at(page, "plan-start")).toBeEnabled();
    });

test("a card's base is 16-bit, the processor's 32-bit, and a wish for it follows the card", async ({ page }) => {
  await open(page, "draft", "en", "light");
  await toPlan(page);
  const base = at(page, "setting-base");
  const options = () => base.locator("option").evaluateAll((all) => all.map((o) => (o as HTMLOptionElement).value));
  expect(await options()).toEqual(["f32", "nf4"]);
  await base.selectOption("nf4");
  await base.selectOption("f32");
  await at(page, "step-card").click();
  await at(page, "card-search").fill("3060 12gb");
  await page.locator("[data-card=rtx-3060-12gb]").check();
  await at(page, "step-plan").click();
  await expect(base).toHaveValue("half");
  expect(await options()).toEqual(["half", "nf4"]);
});

for (const lang of LANGUAGES)
  test(`settings are kept under a name, loaded, replaced and deleted, ${lang}`, async ({ page }) => {
    await open(page, "draft", lang, "light");
    await toPlan(page);
    const keep = async (name: string) => {
      await at(page, "preset-name").fill(name);
      await page.keyboard.press("Enter");
      await expect(at(page, "preset-select")).toHaveValue(name);
    };
    await at(page, "slider-rank").fill("64");
    await keep("速度优先 🔥 quick");
    await at(page, "plan-reset").click();
    await expect(at(page, "setting-rank")).toHaveValue("16");
    await at(page, "preset-load").click();
    await expect(at(page, "setting-rank")).toHaveValue("64");
    await shot(page, "4-plan-kept", lang, "light");

    await at(page, "slider-rank").fill("32");
    await keep("速度优先 🔥 quick");
    await expect(at(page, "preset-select").locator("option")).toHaveCount(2);
    await at(page, "plan-reset").click();
    await at(page, "preset-load").click();
    await expect(at(page, "setting-rank")).toHaveValue("32");
    await at(page, "preset-delete").click();
    await expect(at(page, "preset-select")).toHaveCount(0);
    await expect(at(page, "setting-rank")).toHaveValue("32");
    await at(page, "preset-undo").click();
    await expect(at(page, "preset-select")).toHaveValue("速度优先 🔥 quick");
    await expect(at(page, "preset-undo")).toHaveCount(0);
  });

test("a slider whose end was widened by a typed value can be moved back over its whole way", async ({ page }) => {
  await open(page, "draft", "en", "light");
  await toPlan(page);
  await at(page, "setting-length").fill("4096");
  await page.keyboard.press("Enter");
  await expect(at(page, "slider-length")).toHaveAttribute("max", "4096");
  await at(page, "slider-length").fill("2048");
  await expect(at(page, "setting-length")).toHaveValue("2048");
  await expect(at(page, "slider-length")).toHaveAttribute("max", "4096");
  await expect(at(page, "slider-length")).toHaveValue("2048");
});

for (const lang of LANGUAGES)
  test(`a comparison and kept settings hold at the smallest window, ${lang}`, async ({ page }) => {
    await page.setViewportSize({ width: 960, height: 640 });
    await open(page, "draft", lang, "dark");
    await toPlan(page);
    await at(page, "slider-length").fill("1024");
    await at(page, "slider-micro-batch").fill("16");
    await at(page, "setting-recompute").selectOption("c0");
    await at(page, "compare-select").selectOption("any");
    await expect(at(page, "compare-bar")).toBeVisible();
    await at(page, "preset-name").fill("一个很长的名称，用来看看它放不放得下 a long name");
    await at(page, "preset-save").click();
    await at(page, "presets").scrollIntoViewIfNeeded();
    await shot(page, "9-small-plan-kept", lang, "dark");
    await at(page, "compare-select").scrollIntoViewIfNeeded();
    await shot(page, "9-small-plan-compare", lang, "dark");
  });

for (const lang of LANGUAGES)
  for (const theme of THEMES)
    test(`which card is needed, how far this one goes and what it costs, ${lang}, ${theme}`, async ({ page }) => {
      await open(page, "draft", lang, theme, "&card");
      await toPlan(page);
      await expect(at(page, "plan-energy")).toContainText(/\d kWh/);
      await at(page, "price-kwh").fill("0.32");
      await page.keyboard.press("Enter");
      await at(page, "price-currency").fill("EUR");
      await page.keyboard.press("Enter");
      await expect(at(page, "price-words")).toContainText("EUR");
      await expect(at(page, "plan-energy")).toContainText("EUR");
      await at(page, "reason-heat").scrollIntoViewIfNeeded();
      await shot(page, "4-plan-price", lang, theme);

      await at(page, "reach-fold").focus();
      await page.keyboard.press("Enter");
      await expect(at(page, "reach-length")).toContainText("8,192");
      await at(page, "reach-try-rank").scrollIntoViewIfNeeded();
      await shot(page, "4-plan-reach", lang, theme);
      await at(page, "reach-try-rank").click();
      await expect(at(page, "setting-rank")).toHaveValue("256");

      await at(page, "card-table-fold").focus();
      await page.keyboard.press("Space");
      await expect(page.locator("[data-testid=cheapest][data-model='llama-3.1-8b']")).toContainText("RTX 50");
      await expect(page.locator("[data-testid=cheapest][data-model='llama-3.1-70b']")).not.toContainText("RTX");
      await at(page, "card-table").evaluate((table) => table.scrollIntoView());
      await shot(page, "4-plan-cards", lang, theme);
      await at(page, "card-table-group").selectOption("datacentre");
      await expect(page.locator("[data-testid=card-table] tbody tr")).toHaveCount(22);
    });

test("quiet hours are read, refused where they are none, and given back when emptied", async ({ page }) => {
  await open(page, "draft", "en", "light", "&card");
  await toPlan(page);
  const quiet = at(page, "setting-quiet");
  await quiet.fill("25:00-07:00");
  await page.keyboard.press("Enter");
  await expect(quiet).toHaveAttribute("aria-invalid", "true");
  await quiet.fill("22：00 – 7：00");
  await page.keyboard.press("Tab");
  await expect(quiet).toHaveAttribute("aria-invalid", "false");
  await expect(quiet).toHaveValue("22:00-07:00");
  await at(page, "setting-heat").fill("");
  await page.keyboard.press("Enter");
  await expect(at(page, "setting-heat")).toHaveValue("");
  await at(page, "plan-reset").click();
  await expect(quiet).toHaveValue("");
  await expect(at(page, "setting-heat")).toHaveValue("87");
});

test("what is typed counts when the run is started by its key, and what cannot be taken holds it", async ({ page }) => {
  await open(page, "draft", "en", "light");
  await toPlan(page);
  const length = at(page, "setting-length");
  await length.fill("many");
  await page.keyboard.press("Control+Enter");
  await expect(length).toHaveAttribute("aria-invalid", "true");
  await expect(length).toBeFocused();
  await expect(at(page, "plan-start")).toBeEnabled();
  // The engine refuses so few tokens: with the length before a run would have begun.
  await length.fill("16");
  await page.keyboard.press("Control+Enter");
  await expect(at(page, "error")).toHaveAttribute("data-code", "plan.all_too_long");
  await expect(at(page, "step-train")).toHaveAttribute("data-state", "todo");
  await length.fill("256");
  await page.keyboard.press("Control+Enter");
  await expect(at(page, "train-finished")).toBeVisible();
});

for (const lang of LANGUAGES)
  test(`an alternative that is taken is lit, and what it was one to is a click away, ${lang}`, async ({ page }) => {
    await open(page, "draft", lang, "light");
    await toPlan(page);
    const alternative = (name: string) => at(page, `alternative-${name}`);
    const [proposed, room, fastest] = [alternative("proposed"), alternative("leave_room"), alternative("fastest")];
    await room.click();
    await expect(room).toHaveAttribute("aria-pressed", "true");
    await expect(proposed).toHaveAttribute("aria-pressed", "false");
    await expect(at(page, "memory-limit")).toBeVisible();
    if (lang === "zh") await expect(room).toContainText("−430 MiB，+");
    await shot(page, "4-plan-alternative", lang, "light");
    await fastest.click();
    await expect(at(page, "memory-limit")).toHaveCount(0);
    await expect(at(page, "setting-micro-batch")).toHaveValue("8");
    await proposed.click();
    await expect(proposed).toHaveAttribute("aria-pressed", "true");
    await expect(at(page, "setting-micro-batch")).toHaveValue("4");
    await expect(at(page, "plan-reset")).toBeDisabled();
  });

test("a card that the draft cannot be planned for says why", async ({ page }) => {
  await open(page, "draft", "en", "light", "&card");
  await toPlan(page);
  for (const compute of ["f16", "bf16"]) await at(page, "setting-compute").selectOption(compute);
  await at(page, "compare-select").selectOption("rtx-2080-ti-11gb");
  await expect(at(page, "compare-refused")).toContainText("does not compute in bf16");
});
