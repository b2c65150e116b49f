import { formatter, type Formatter, type Lang } from "$lib/format";
import { settings } from "$lib/stores/settings.svelte";

import { en, type Dictionary } from "./en";
import { zh } from "./zh";

const dictionaries: Record<Lang, Dictionary> = { en, zh };
const formatters: Record<Lang, Formatter> = { en: formatter("en"), zh: formatter("zh") };

/** The language of the system, as far as it is one of ours. */
export function systemLang(languages: readonly string[] = navigator.languages ?? []): Lang {
  for (const language of languages) {
    if (/^zh\b/i.test(language)) return "zh";
    if (/^en\b/i.test(language)) return "en";
  }
  return "en";
}

/** Words and numbers in the chosen language. Reading `m` or `f` in a component follows a switch of the language. */
class I18n {
  lang = $derived<Lang>(settings.language === "system" ? systemLang() : settings.language);
  m = $derived(dictionaries[this.lang]);
  f = $derived(formatters[this.lang]);
}

export const i18n = new I18n();
