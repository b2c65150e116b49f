import type { ErrorReport } from "$lib/bindings/ErrorReport";
import { choicesOf } from "$lib/draft";
import { toReport } from "$lib/errors";
import { platform, type Preset } from "$lib/platform";

import { plan } from "./plan.svelte";

/** Settings kept under a name, on this computer. */
class PresetStore {
  list = $state.raw<Preset[]>([]);
  error = $state.raw<ErrorReport | null>(null);

  refresh(): Promise<boolean> {
    return this.#ask(platform.presets());
  }

  /** Keeps the choices of the draft. */
  save(name: string): Promise<boolean> {
    return this.#ask(platform.savePreset(name, choicesOf(plan.draft)));
  }

  /** Keeps again what was deleted. */
  restore({ name, config }: Preset): Promise<boolean> {
    return this.#ask(platform.savePreset(name, config));
  }

  remove(name: string): Promise<boolean> {
    return this.#ask(platform.deletePreset(name));
  }

  load(name: string): boolean {
    const found = this.list.find((preset) => preset.name === name);
    if (found) plan.choose(found.config);
    return found !== undefined;
  }

  async #ask(answer: Promise<Preset[]>): Promise<boolean> {
    try {
      this.list = await answer;
      this.error = null;
    } catch (error) {
      this.error = toReport(error);
    }
    return this.error === null;
  }
}

export const presets = new PresetStore();
