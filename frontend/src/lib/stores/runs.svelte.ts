import type { ErrorReport } from "$lib/bindings/ErrorReport";
import type { RunSummary } from "$lib/bindings/RunSummary";
import { toReport } from "$lib/errors";
import { platform } from "$lib/platform";

/** All runs on this disk, newest first. */
class RunsStore {
  list = $state.raw<RunSummary[]>([]);
  loaded = $state(false);
  error = $state.raw<ErrorReport | null>(null);

  running = $derived(this.list.filter((r) => r.state === "running"));
  /** Can be continued. */
  waiting = $derived(
    this.list.filter((r) => r.state === "stopped" || r.state === "interrupted" || r.state === "failed"),
  );
  finished = $derived(this.list.filter((r) => r.state === "finished"));

  async refresh(): Promise<void> {
    try {
      const list = await platform.runs();
      this.list = [...list].sort((a, b) => b.updated_ms - a.updated_ms);
      this.error = null;
    } catch (error) {
      this.error = toReport(error);
    } finally {
      this.loaded = true;
    }
  }
}

export const runs = new RunsStore();
