import type { ErrorReport } from "$lib/bindings/ErrorReport";
import { toReport } from "$lib/errors";

/** An answer that is asked for again only where what it follows from has changed; an answer to an earlier question is dropped. */
export class Asked<Answer> {
  answer = $state.raw<Answer | null>(null);
  error = $state.raw<ErrorReport | null>(null);
  loading = $state(false);
  #from: readonly unknown[] = [];
  #times = 0;

  /** `from` is compared by identity. */
  async ask(from: readonly unknown[], question: () => Promise<Answer>): Promise<void> {
    if (from.length === this.#from.length && from.every((value, i) => value === this.#from[i])) return;
    this.#from = from;
    const times = ++this.#times;
    this.loading = true;
    try {
      const answer = await question();
      if (times !== this.#times) return;
      this.answer = answer;
      this.error = null;
    } catch (error) {
      if (times !== this.#times) return;
      // The next look asks again.
      this.#from = [];
      this.answer = null;
      this.error = toReport(error);
    }
    this.loading = false;
  }
}
