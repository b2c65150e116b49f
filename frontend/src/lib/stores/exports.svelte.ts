import type { ErrorReport } from "$lib/bindings/ErrorReport";
import type { Proof } from "$lib/bindings/Proof";
import { toReport } from "$lib/errors";
import { platform, type ExportKind } from "$lib/platform";

type Result = Pick<Done, "path" | "proof" | "notes">;

export interface Done {
  kind: ExportKind;
  path: string;
  proof: Proof;
  notes: string[];
  timeMs: number;
  tookS: number;
}

/** Exports of the open run, one after another, each with its proof. */
class ExportsStore {
  folder = $state("");
  wanted = $state<{ merged: boolean; adapter: boolean; report: boolean }>({
    merged: true,
    adapter: false,
    report: false,
  });
  /** Of the merged model; "own" is the base's own 16-bit format. */
  dtype = $state<"own" | "f16" | "bf16" | "f32">("own");
  busy = $state(false);
  current = $state<ExportKind | "report" | null>(null);
  progress = $state.raw<{ phase: string; done: number; total: number } | null>(null);
  done = $state.raw<Done[]>([]);
  reportPath = $state<string | null>(null);
  error = $state.raw<ErrorReport | null>(null);

  async start(run: string): Promise<void> {
    if (this.busy) return;
    this.busy = true;
    this.error = null;
    try {
      for (const kind of ["merged", "adapter"] as const) if (this.wanted[kind]) await this.#one(run, kind);
      if (this.wanted.report) {
        this.current = "report";
        this.reportPath = await platform.report(run);
      }
    } catch (error) {
      this.error = toReport(error);
    } finally {
      this.busy = false;
      this.current = null;
      this.progress = null;
    }
  }

  reset(): void {
    this.done = [];
    this.reportPath = null;
    this.error = null;
  }

  async #one(run: string, kind: ExportKind): Promise<void> {
    this.current = kind;
    this.progress = null;
    const started = Date.now();
    let result: Result | null = null;
    let failure: unknown = null;
    await new Promise<void>((resolve, reject) => {
      platform
        .exportRun(
          { run, kind, folder: this.folder, dtype: kind === "merged" && this.dtype !== "own" ? this.dtype : null },
          (message) => {
            if ("ended" in message) {
              failure ??= message.ended.error;
              resolve();
              return;
            }
            for (const line of message.lines)
              if ("progress" in line) this.progress = line.progress;
              else if ("error" in line) failure = line.error;
              else result = line;
          },
        )
        .catch(reject);
    });
    // An export that was not proven ends with its proof and a non-zero code: the proof is what is shown.
    if (result !== null) {
      const { path, proof, notes } = result as Result;
      const now = Date.now();
      this.done = [
        ...this.done.filter((d) => d.kind !== kind),
        { kind, path, proof, notes, timeMs: now, tookS: (now - started) / 1000 },
      ];
    } else
      throw failure ?? { code: "window.engine_ended", message: "The export ended without a result.", next_step: "" };
  }
}

export const exports = new ExportsStore();
