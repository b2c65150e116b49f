/** Values of one series; `null` is a gap. */
export type Values = ArrayLike<number | null>;

/**
 * Indices to draw when there are more points than pixels: in each of `buckets` equal parts the lowest and the highest
 * point of every series stay, and one gap where there is one, so that neither a spike nor a hole is lost.
 */
export function decimate(series: readonly Values[], n: number, buckets: number): number[] {
  if (n <= buckets * 2) return Array.from({ length: n }, (_, i) => i);
  const keep = new Set<number>([0, n - 1]);
  for (let b = 0; b < buckets; b++) {
    const from = Math.floor((b * n) / buckets);
    const to = Math.floor(((b + 1) * n) / buckets);
    for (const values of series) {
      let low = -1;
      let high = -1;
      let gap = -1;
      for (let i = from; i < to; i++) {
        const value = values[i];
        if (value === null || value === undefined || Number.isNaN(value)) {
          gap = i;
          continue;
        }
        if (low < 0 || value < (values[low] as number)) low = i;
        if (high < 0 || value > (values[high] as number)) high = i;
      }
      for (const i of [low, high, gap]) if (i >= 0) keep.add(i);
    }
  }
  return [...keep].sort((a, b) => a - b);
}
