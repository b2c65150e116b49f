import type { ErrorReport } from "$lib/bindings/ErrorReport";
import type { Inspection } from "$lib/bindings/Inspection";
import { toReport } from "$lib/errors";
import { platform } from "$lib/platform";

/** Last part of a path on any system. */
export function baseName(path: string): string {
  return (
    path
      .replace(/[\\/]+$/, "")
      .split(/[\\/]/)
      .pop() ?? path
  );
}

/** The base model that is chosen and what the engine found in it. */
class ModelStore {
  path = $state<string | null>(null);
  found = $state.raw<Inspection | null>(null);
  error = $state.raw<ErrorReport | null>(null);
  loading = $state(false);
  bundled = $state<string | null>(null);

  name = $derived(this.path === null ? null : baseName(this.path).replace(/\.gguf$/i, ""));
  shape = $derived(this.found?.model.shape ?? null);

  async open(path: string): Promise<boolean> {
    const clean = path.trim().replace(/^"(.*)"$/, "$1");
    if (clean === "") return false;
    this.loading = true;
    this.error = null;
    this.path = clean;
    this.found = null;
    try {
      const found = await platform.inspectModel(clean);
      if (this.path === clean) this.found = found;
    } catch (error) {
      if (this.path === clean) this.error = toReport(error);
    } finally {
      if (this.path === clean) this.loading = false;
    }
    return this.found !== null;
  }

  clear(): void {
    this.path = null;
    this.found = null;
    this.error = null;
    this.loading = false;
  }
}

export const model = new ModelStore();
