/** Axes: round ticks, and ranges that end on them. */

export interface Scale {
  min: number;
  max: number;
  /** Distance between ticks. */
  step: number;
}

/** A round step that makes about `count` parts of a span. */
function roundStep(span: number, count: number): number {
  const raw = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  return tidy(([1, 2, 2.5, 5, 10].find((m) => m * power >= raw * 0.999) ?? 10) * power);
}

/** Multiples of `step` in `[min, max]`. */
export function multiples({ min, max, step }: Scale): number[] {
  const out: number[] = [];
  for (let i = Math.ceil(min / step - 1e-9); i * step <= max + step * 1e-9; i++) out.push(tidy(i * step));
  return out;
}

/** Round tick values in `[min, max]`, about `count` of them. */
export function ticks(min: number, max: number, count: number): number[] {
  if (!(max > min)) return [min];
  return multiples({ min, max, step: roundStep(max - min, count) });
}

/** The range rounded outwards to whole ticks. A flat line gets room above and below. */
export function niceScale(min: number, max: number, count: number, fromZero = false): Scale {
  let low = fromZero ? Math.min(0, min) : min;
  let high = max;
  if (!Number.isFinite(low) || !Number.isFinite(high)) return { min: 0, max: 1, step: 1 };
  if (high - low <= Math.abs(high) * 1e-6) {
    const room = high === 0 ? 1 : Math.abs(high) * 0.1;
    if (!(fromZero && low === 0 && high > 0)) low -= room;
    high += room;
    if (fromZero && min >= 0) low = Math.max(0, low);
  }
  const step = roundStep(high - low, count);
  return { min: tidy(Math.floor(low / step + 1e-9) * step), max: tidy(Math.ceil(high / step - 1e-9) * step), step };
}

/** Without the crumbs of binary fractions. */
function tidy(value: number): number {
  return Number(value.toPrecision(12));
}

/** Lowest and highest finite value of several series; `null` where there is none. */
export function extent(...series: ArrayLike<number | null>[]): [number, number] | null {
  let low = Infinity;
  let high = -Infinity;
  for (const values of series)
    for (let i = 0; i < values.length; i++) {
      const value = values[i];
      if (value === null || value === undefined || !Number.isFinite(value)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  return low <= high ? [low, high] : null;
}
