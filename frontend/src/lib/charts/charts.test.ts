import { describe, expect, test } from "vitest";

import { extent, multiples, niceScale, ticks } from "../axis";
import { decimate } from "./decimate";
import { decayFor, smooth } from "./smooth";

describe("decimation", () => {
  const n = 100_000;
  const flat = new Array<number | null>(n).fill(1);

  test("few points are left alone", () => {
    expect(decimate([flat], 7, 100)).toEqual([0, 1, 2, 3, 4, 5, 6]);
  });
  test("keeps every spike, up and down, of every series", () => {
    const a = flat.slice();
    const b = flat.slice();
    a[31_337] = 50;
    a[31_400] = -50;
    b[77_777] = 9;
    const kept = new Set(decimate([a, b], n, 300));
    for (const i of [0, 31_337, 31_400, 77_777, n - 1]) expect(kept.has(i), `${i}`).toBe(true);
    expect(kept.size).toBeLessThan(300 * 6 + 2);
  });
  test("a gap stays a gap", () => {
    const a = flat.slice();
    a[50_000] = null;
    expect(decimate([a], n, 300)).toContain(50_000);
    a[50_000] = NaN;
    expect(decimate([a], n, 300)).toContain(50_000);
  });
  test("indices ascend and none comes twice", () => {
    const wave = flat.map((_, i) => Math.sin(i));
    const kept = decimate([wave], n, 500);
    for (let i = 1; i < kept.length; i++) expect(kept[i] as number).toBeGreaterThan(kept[i - 1] as number);
  });
});

describe("smoothing", () => {
  test("starts at the first value, without a bias towards zero", () => {
    expect(smooth([4, 4, 4], 0.9)).toEqual([4, 4, 4].map((v) => expect.closeTo(v, 12)));
  });
  test("does not average over gaps or NaN, and goes on after them", () => {
    const out = smooth([1, null, NaN, 1], 0.5);
    expect(out[1]).toBeNull();
    expect(out[2]).toBeNull();
    expect(out[3]).toBeCloseTo(1, 12);
  });
  test("follows a step within its window", () => {
    const decay = decayFor(200);
    const out = smooth([...new Array<number>(50).fill(0), ...new Array<number>(50).fill(1)], decay);
    expect(out[54] as number).toBeGreaterThan(0.5);
    expect(out[99] as number).toBeGreaterThan(0.99);
  });
});

describe("axes", () => {
  test("ticks are round and inside", () => {
    expect(ticks(0, 1, 4)).toEqual([0, 0.25, 0.5, 0.75, 1]);
    expect(ticks(0, 212, 4)).toEqual([0, 100, 200]);
    expect(ticks(5, 5, 4)).toEqual([5]);
  });
  test("a range ends on its ticks and holds its values", () => {
    for (const [low, high] of [
      [0.41, 3.35],
      [1.18, 1.99],
      [-3, 7],
      [1e-6, 2e-4],
      [12345, 99999],
    ] as const) {
      const scale = niceScale(low, high, 5);
      expect(scale.min).toBeLessThanOrEqual(low);
      expect(scale.max).toBeGreaterThanOrEqual(high);
      const marks = multiples(scale);
      expect(marks[0]).toBeCloseTo(scale.min, 10);
      expect(marks[marks.length - 1]).toBeCloseTo(scale.max, 10);
    }
  });
  test("a flat line gets room and a positive one stays above zero", () => {
    expect(niceScale(1, 1, 4).min).toBeLessThan(1);
    expect(niceScale(1, 1, 4).max).toBeGreaterThan(1);
    expect(niceScale(5, 5, 4, true).min).toBe(0);
    expect(niceScale(0, 0, 4, true).max).toBeGreaterThan(0);
  });
  test("the extent skips what is no number", () => {
    expect(extent([1, null, NaN, 3], [Infinity, -2])).toEqual([-2, 3]);
    expect(extent([null, NaN])).toBeNull();
  });
});
