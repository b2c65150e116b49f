/** What the status bar says besides what it derives itself. */
class Status {
  /** The token under the cursor of the Data screen, in words. */
  token = $state.raw<{ text: string; words: string } | null>(null);
  /** Said once to screen readers: a run finished, an export was proven. */
  announcement = $state("");
}

export const status = new Status();
