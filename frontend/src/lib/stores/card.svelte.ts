import type { ErrorReport } from "$lib/bindings/ErrorReport";
import type { Hardware } from "$lib/bindings/Hardware";
import { toReport } from "$lib/errors";
import { platform, type CardFigures, type Profile } from "$lib/platform";

/** The machine, and the card that is planned for: this one, or a preset that is not in the machine. */
class CardStore {
  here = $state.raw<Hardware | null>(null);
  profiles = $state.raw<Profile[]>([]);
  /** Id of the chosen preset; null is this machine. */
  chosen = $state<string | null>(null);
  error = $state.raw<ErrorReport | null>(null);
  /** Why a described card could not be kept, forgotten or shared. */
  ownError = $state.raw<ErrorReport | null>(null);
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

  /** Keeps a described card and plans for it. */
  async save(figures: CardFigures): Promise<boolean> {
    return this.#change((here) => platform.saveCard(figures, here), figures.name);
  }

  async remove(profile: Profile): Promise<boolean> {
    return this.#change((here) => platform.deleteCard(profile.name, here), null);
  }

  async import(): Promise<boolean> {
    const before = new Set(this.profiles.map(({ id }) => id));
    const done = await this.#change((here) => platform.importCard(here), null);
    const added = this.profiles.find(({ id, own }) => own && !before.has(id));
    if (added) this.chosen = added.id;
    return done;
  }

  async export(id: string): Promise<boolean> {
    return this.#change(async () => ((await platform.exportCard(id)) ? this.profiles : null), null);
  }

  /** False where it failed or was dismissed. */
  async #change(ask: (here: Hardware) => Promise<Profile[] | null>, choose: string | null): Promise<boolean> {
    if (this.here === null) return false;
    this.ownError = null;
    try {
      const profiles = await ask(this.here);
      if (profiles === null) return false;
      this.profiles = profiles;
      if (choose !== null) this.chosen = profiles.find(({ own, name }) => own && name === choose)?.id ?? this.chosen;
      if (!profiles.some(({ id }) => id === this.chosen)) this.chosen = null;
      return true;
    } catch (error) {
      this.ownError = toReport(error);
      return false;
    }
  }

  choose(id: string | null): void {
    this.chosen = id;
  }
}

export const card = new CardStore();
