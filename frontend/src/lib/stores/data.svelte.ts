import type { ErrorReport } from "$lib/bindings/ErrorReport";
import type { Inspection } from "$lib/bindings/Inspection";
import { toReport } from "$lib/errors";
import { platform } from "$lib/platform";

import { baseName, model } from "./model.svelte";

export type Example = Inspection["examples"][number];

const AT_ONCE = 20;

/** The file of examples, as the chosen model sees it. */
class DataStore {
  path = $state<string | null>(null);
  found = $state.raw<Inspection | null>(null);
  error = $state.raw<ErrorReport | null>(null);
  loading = $state(false);
  /** Position of the shown example among the readable ones, from 0. */
  index = $state(0);
  /** What the model was when it was asked. */
  seenBy: Inspection | null = null;
  #pages = $state.raw(new Map<number, Example[]>());
  /** Counts questions and what makes them void: an answer to an earlier one is dropped. */
  #asked = 0;

  name = $derived(this.path === null ? null : baseName(this.path));
  example = $derived<Example | null>(
    this.#pages.get(Math.floor(this.index / AT_ONCE))?.[this.index % AT_ONCE] ?? null,
  );

  async open(path: string): Promise<boolean> {
    const clean = path.trim().replace(/^"(.*)"$/, "$1");
    if (clean === "") return false;
    // What was found belongs to the file before.
    if (clean !== this.path) this.forget();
    this.path = clean;
    this.index = 0;
    return this.inspect();
  }

  /**
   * Asks the engine again: another file or another model. Always at full length, which is what the plan wants to know;
   * what a length leaves out is the plan's answer.
   */
  async inspect(): Promise<boolean> {
    const { path } = this;
    if (path === null || model.found === null || model.path === null) {
      this.found = null;
      return false;
    }
    this.seenBy = model.found;
    this.loading = true;
    this.error = null;
    const asked = ++this.#asked;
    const current = () => asked === this.#asked;
    try {
      const found = await platform.inspect({ data: path, model: model.path, length: null, from: 1, limit: AT_ONCE });
      if (current()) {
        this.found = found;
        this.#pages = new Map([[0, found.examples]]);
        if (this.index !== 0) void this.show(Math.min(this.index, Math.max(0, found.stats.n_examples - 1)));
      }
    } catch (error) {
      if (current()) {
        this.found = null;
        this.error = toReport(error);
      }
    } finally {
      if (current()) this.loading = false;
    }
    return this.found !== null;
  }

  /** Shows the example at a position, loading its neighbours where they are not here yet. */
  async show(index: number): Promise<void> {
    const { found, path } = this;
    if (found === null || path === null || model.path === null) return;
    this.index = Math.max(0, Math.min(found.stats.n_examples - 1, index));
    const page = Math.floor(this.index / AT_ONCE);
    if (this.#pages.has(page)) return;
    try {
      const more = await platform.inspect({
        data: path,
        model: model.path,
        length: null,
        from: rowOf(page * AT_ONCE, found),
        limit: AT_ONCE,
      });
      if (this.found === found) this.#pages = new Map(this.#pages).set(page, more.examples);
    } catch (error) {
      if (this.found === found) this.error = toReport(error);
    }
  }

  /** Keeps the path and forgets what a model made of it. */
  forget(): void {
    this.#asked++;
    this.found = null;
    this.error = null;
    this.loading = false;
    this.seenBy = null;
    this.#pages = new Map();
  }

  clear(): void {
    this.forget();
    this.path = null;
    this.index = 0;
  }
}

/** Row in the file of the usable example at a position: rows that are left out do not count. */
export function rowOf(position: number, found: Pick<Inspection, "problems">): number {
  const out = [...new Set(found.problems.filter((p) => p.left_out).map((p) => p.row))].sort((a, b) => a - b);
  let row = position + 1;
  for (const skipped of out) if (skipped <= row) row++;
  return row;
}

export const data = new DataStore();
