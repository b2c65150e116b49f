/**
 * Exponential moving average without the start's bias: s_t = sum of decay^(t-i) x_i / sum of decay^(t-i).
 * Gaps and NaN are left as they are and not averaged over.
 */
export function smooth(values: ArrayLike<number | null>, decay: number): (number | null)[] {
  const out: (number | null)[] = [];
  let sum = 0;
  let weight = 0;
  for (let i = 0; i < values.length; i++) {
    const value = values[i] ?? null;
    if (value === null || Number.isNaN(value)) {
      out.push(null);
      continue;
    }
    sum = sum * decay + value;
    weight = weight * decay + 1;
    out.push(sum / weight);
  }
  return out;
}

/** A window of about 4 % of the run, at least 5 and at most 50 steps. */
export function decayFor(nSteps: number): number {
  const window = Math.min(50, Math.max(5, Math.round(nSteps * 0.04)));
  return 1 - 2 / (window + 1);
}
