import type { GpuSetup } from "$lib/bindings/GpuSetup";
import type { GpuSetupProgress } from "$lib/bindings/GpuSetupProgress";

const TOTAL = 453_000_000;

/** NVIDIA's libraries on a computer with a card, missing at first; for page tests only. */
export class MockGpu {
  #kept = 0;
  constructor(
    private readonly card: string | null,
    private missing: boolean,
  ) {}

  report(): GpuSetup {
    const missing = this.missing;
    return {
      train_on: this.card !== null && !missing ? "card" : "processor",
      reason: this.card === null ? "no_card" : missing ? "no_libraries" : "ready",
      message: missing ? "The card can be used; only NVIDIA’s libraries are missing." : "Runs train on the card.",
      next_step: missing ? "Fetch them once; it can be interrupted and goes on where it was." : "",
      card: this.card,
      driver: this.card === null ? null : "581.42",
      least_driver: 580,
      packages: [
        {
          name: "nvidia-cublas",
          version: "13.1.0.3",
          libraries: ["libcublas.so.13", "libcublasLt.so.13"],
          state: missing ? { kind: "missing" } : { kind: "fetched", folder: "/home/ana/.local/share/Hearth/cuda" },
          download_bytes: TOTAL,
          kept_bytes: missing ? this.#kept : 0,
          unpacked_bytes: 595_000_000,
        },
      ],
      fetch_bytes: missing ? TOTAL - this.#kept : 0,
      folder: "/home/ana/.local/share/Hearth/cuda",
      licence: "NVIDIA CUDA Toolkit End User License Agreement",
      licence_url: "https://docs.nvidia.com/cuda/eula",
    };
  }

  /** One step further; null when all is there. */
  next(): GpuSetupProgress | null {
    this.#kept = Math.min(TOTAL, this.#kept + TOTAL / 40);
    const done = this.#kept >= TOTAL;
    if (done) this.missing = false;
    if (done) return null;
    return {
      phase: "fetch",
      package: "nvidia-cublas",
      done_bytes: Math.round(this.#kept),
      total_bytes: TOTAL,
      bytes_per_s: 24_000_000,
      left_s: (TOTAL - this.#kept) / 24_000_000,
      reason: null,
    };
  }
}
