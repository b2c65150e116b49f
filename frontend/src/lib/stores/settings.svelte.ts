import type { Lang } from "$lib/format";

export type LanguageChoice = "system" | Lang;
export type ThemeChoice = "system" | "light" | "dark";

const KEY = "hearth.settings";

function load(): { language: LanguageChoice; theme: ThemeChoice } {
  try {
    const stored = JSON.parse(localStorage.getItem(KEY) ?? "{}") as Record<string, unknown>;
    return {
      language: stored.language === "en" || stored.language === "zh" ? stored.language : "system",
      theme: stored.theme === "light" || stored.theme === "dark" ? stored.theme : "system",
    };
  } catch {
    return { language: "system", theme: "system" };
  }
}

/** What a person chose about the window itself. Kept by the window; nothing of a run depends on it. */
class Settings {
  language = $state<LanguageChoice>("system");
  theme = $state<ThemeChoice>("system");

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

  #save(): void {
    localStorage.setItem(KEY, JSON.stringify({ language: this.language, theme: this.theme }));
  }
}

export const settings = new Settings();
