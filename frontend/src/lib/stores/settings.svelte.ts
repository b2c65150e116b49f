import type { Prices } from "$lib/bindings/Prices";
import type { Lang } from "$lib/format";

export type LanguageChoice = "system" | Lang;
export type ThemeChoice = "system" | "light" | "dark";

const KEY = "hearth.settings";

interface Stored {
  language: LanguageChoice;
  theme: ThemeChoice;
  prices: Prices | null;
}

function load(): Stored {
  try {
    const stored = JSON.parse(localStorage.getItem(KEY) ?? "{}") as Record<string, unknown>;
    return {
      language: stored.language === "en" || stored.language === "zh" ? stored.language : "system",
      theme: stored.theme === "light" || stored.theme === "dark" ? stored.theme : "system",
      prices: pricesOf(stored.prices),
    };
  } catch {
    return { language: "system", theme: "system", prices: null };
  }
}

function pricesOf(stored: unknown): Prices | null {
  if (typeof stored !== "object" || stored === null) return null;
  const { currency, per_kwh, per_hour, power_w } = stored as Record<string, unknown>;
  const number = (value: unknown) => (typeof value === "number" && value >= 0 ? value : null);
  return {
    currency: typeof currency === "string" ? currency : "",
    per_kwh: number(per_kwh),
    per_hour: number(per_hour),
    power_w: number(power_w),
  };
}

/** What a person chose about the window itself. Kept by the window; nothing of a run depends on it. */
class Settings {
  language = $state<LanguageChoice>("system");
  theme = $state<ThemeChoice>("system");
  /** What energy and hours cost here; null until somebody said a price. */
  prices = $state.raw<Prices | null>(null);

  constructor() {
    Object.assign(this, load());
  }

  setLanguage(language: LanguageChoice): void {
    this.language = language;
    this.#save();
  }

  setTheme(theme: ThemeChoice): void {
    this.theme = theme;
    this.#save();
  }

  setPrices(prices: Prices): void {
    const { per_kwh, per_hour, power_w } = prices;
    this.prices = per_kwh === null && per_hour === null && power_w === null ? null : prices;
    this.#save();
  }

  #save(): void {
    const { language, theme, prices } = this;
    localStorage.setItem(KEY, JSON.stringify({ language, theme, prices }));
  }
}

export const settings = new Settings();
