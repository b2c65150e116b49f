import type { ErrorReport } from "$lib/bindings/ErrorReport";
import type { Hardware } from "$lib/bindings/Hardware";
import { toReport } from "$lib/errors";
import { platform, type Profile } from "$lib/platform";

/** The machine, and the card that is planned for: this one, or a preset that is not in the machine. */
class CardStore {
  here = $state.raw<Hardware | null>(null);
  profiles = $state.raw<Profile[]>([]);
  /** Id of the chosen preset; null is this machine. */
  chosen = $state<string | null>(null);
  error = $state.raw<ErrorReport | null>(null);
  loading = $state(false);
  checkedMs = $state<number | null>(null);

  /** What the plan is made for. */
  hardware = $derived(
    this.chosen === null ? this.here : (this.profiles.find((p) => p.id === this.chosen)?.hardware ?? this.here),
  );
  isHere = $derived(this.chosen === null);
  runsDir = $state<string | null>(null);
  /** The disk that holds the runs: the deepest mount above their folder. */
  runsDisk = $derived.by(() => {
    const dir = this.runsDir;
    if (dir === null) return null;
    const holding = (this.here?.disks ?? []).filter((disk) => dir.startsWith(disk.mount));
    return holding.sort((a, b) => b.mount.length - a.mount.length)[0] ?? null;
  });

  async detect(): Promise<void> {
    this.loading = true;
    try {
      this.here = await platform.hardware();
      this.error = null;
      this.checkedMs = Date.now();
    } catch (error) {
      this.error = toReport(error);
    } finally {
      this.loading = false;
    }
    if (this.here !== null)
      try {
        this.profiles = await platform.profiles(this.here);
      } catch {
        // Presets are a convenience: this machine can be planned for without them.
      }
  }

  choose(id: string | null): void {
    this.chosen = id;
  }
}

export const card = new CardStore();
