import type { ErrorReport } from "$lib/bindings/ErrorReport";
import type { GpuSetup } from "$lib/bindings/GpuSetup";
import type { GpuSetupProgress } from "$lib/bindings/GpuSetupProgress";
import { toReport } from "$lib/errors";
import { platform, type GpuOrigin, type GpuSetupLine, type Stream, type StreamMessage } from "$lib/platform";

import { card } from "./card.svelte";

/** Whether runs train on the card, and NVIDIA's libraries on their way onto this computer. */
class GpuStore {
  setup = $state.raw<GpuSetup | null>(null);
  progress = $state.raw<GpuSetupProgress | null>(null);
  fetching = $state(false);
  /** Address of a mirror of the package index; empty for the index itself. */
  mirror = $state("");
  error = $state.raw<ErrorReport | null>(null);
  #stream: Stream | null = null;

  /** The libraries are what is missing, and they can be fetched here. */
  canFetch = $derived(
    this.setup !== null &&
      (this.setup.reason === "no_libraries" || this.setup.reason === "damaged_libraries") &&
      this.setup.fetch_bytes > 0 &&
      this.setup.folder !== null,
  );
  /** Bytes that an earlier attempt left. */
  keptBytes = $derived(this.setup?.packages.reduce((sum, found) => sum + found.kept_bytes, 0) ?? 0);

  async look(): Promise<void> {
    try {
      this.setup = await platform.gpuSetup();
    } catch (error) {
      this.error = toReport(error);
    }
  }

  async fetch(origin: GpuOrigin = { mirror: this.mirror.trim() || null, folder: null }): Promise<void> {
    if (this.fetching) return;
    this.fetching = true;
    this.progress = null;
    this.error = null;
    try {
      this.#stream = await platform.fetchGpuLibraries(origin, (message) => this.#take(message));
    } catch (error) {
      this.error = toReport(error);
      this.fetching = false;
    }
  }

  /** Ends it; what was fetched is kept. */
  async cancel(): Promise<void> {
    await this.#stream?.close();
    await this.#ended();
  }

  #take(message: StreamMessage<GpuSetupLine>): void {
    if (!this.fetching) return;
    if ("ended" in message) {
      if (message.ended.error !== null) this.error = toReport(message.ended.error);
      void this.#ended();
      return;
    }
    for (const line of message.lines) {
      if ("progress" in line) this.progress = line.progress;
      else if ("error" in line) this.error = toReport(line.error);
      else this.setup = line;
    }
  }

  async #ended(): Promise<void> {
    if (!this.fetching) return;
    this.#stream = null;
    this.fetching = false;
    this.progress = null;
    // With the libraries the same computer may train on its card.
    await Promise.all([this.look(), card.detect()]);
  }
}

export const gpu = new GpuStore();
