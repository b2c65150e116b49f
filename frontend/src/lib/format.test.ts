import { describe, expect, test } from "vitest";

import { formatter, GIB, parseHours, parseNumber, UNKNOWN } from "./format";

const en = formatter("en");
const zh = formatter("zh");
const KIB = 1024;
const MIB = 1024 ** 2;

describe("every kind of number", () => {
  const shows = Object.entries(en) as [string, (value: number | null | undefined, more?: number) => string][];
  test("an unknown value is a dash, NaN stays NaN, infinity is a sign", () => {
    for (const [name, show] of shows) {
      expect(show(null, 1), name).toBe(UNKNOWN);
      expect(show(undefined, 1), name).toBe(UNKNOWN);
      expect(show(NaN, 1), name).toBe("NaN");
      expect(show(Infinity, 1), name).toBe("∞");
      expect(show(-Infinity, 1), name).toBe("−∞");
    }
  });
});

describe("files", () => {
  test.each([
    [0, "0 B"],
    [1, "1 B"],
    [1023, "1,023 B"],
    [1024, "1.0 KiB"],
    [9.95 * KIB, "10 KiB"],
    [1023.4 * KIB, "1,023 KiB"],
    [1023.5 * KIB, "1.0 MiB"],
    [19.6 * MIB, "20 MiB"],
    [9.6 * MIB, "9.6 MiB"],
    [1023.96 * MIB, "1.00 GiB"],
    [9.994 * GIB, "9.99 GiB"],
    [9.996 * GIB, "10.0 GiB"],
    [1023.96 * GIB, "1.00 TiB"],
    [5000 * 1024 * GIB, "5,000.0 TiB"],
  ])("%d bytes are %s", (bytes, shown) => expect(en.file(bytes)).toBe(shown));

  test("no unit ever shows 1024 or more of itself, except the last", () => {
    for (let power = 0; power < 45; power += 0.01) {
      const shown = en.file(2 ** power);
      const [figure = "", unit] = shown.split(" ");
      if (unit !== "TiB") expect(Number(figure.replace(/,/g, "")), shown).toBeLessThan(1024);
    }
  });
});

describe("memory", () => {
  test("is in GiB with two decimals, however large", () => {
    expect(en.memory(11.01 * GIB)).toBe("11.01 GiB");
        expect(en.gib(1234.5 * GIB)).toBe("1234.50");
  });
  test("something is never nothing", () => {
    for (const show of [en.gib, (bytes: number) => en.memory(bytes).replace(/ GiB$/, "")]) {
      expect(show(1)).toBe("<0.01");
      expect(show(0.004 * GIB)).toBe("<0.01");
      expect(show(0)).toBe("0.00");
      expect(show(0.005 * GIB)).toBe("0.01");
    }
  });
});

describe("durations", () => {
  test.each([
    [0, "0 s", "0 秒"],
    [3.94, "3.9 s", "3.9 秒"],
    [9.94, "9.9 s", "9.9 秒"],
    [9.96, "10 s", "10 秒"],
    [59.4, "59 s", "59 秒"],
    [59.5, "1 min", "1 分"],
    [60, "1 min", "1 分"],
    [59 * 60 + 29, "59 min", "59 分"],
    [59 * 60 + 30, "1 h 00 min", "1 小时 00 分"],
    [3600 + 5 * 60, "1 h 05 min", "1 小时 05 分"],
    [3 * 3600 + 32 * 60, "3 h 32 min", "3 小时 32 分"],
    [48 * 3600 - 31, "47 h 59 min", "47 小时 59 分"],
    [48 * 3600, "2 d 00 h", "2 天 00 小时"],
    [71.6 * 3600, "3 d 00 h", "3 天 00 小时"],
    [-1, "0 s", "0 秒"],
  ])("%d seconds are %s", (seconds, english, chinese) => {
    expect(en.duration(seconds)).toBe(english);
    expect(zh.duration(seconds)).toBe(chinese);
  });
});

describe("counts", () => {
  test.each([
    [0, "0"],
    [999, "999"],
    [1000, "1,000"],
    [4812, "4,812"],
    [1234567, "1,234,567"],
    [-12345, "−12,345"],
    [-0.2, "0"],
  ])("%d is %s", (n, shown) => expect(en.count(n)).toBe(shown));

  test.each([
    [9_999, "9,999"],
    [10_000, "10.0 k"],
    [99_960, "100 k"],
    [999_400, "999 k"],
    [999_500, "1.00 M"],
    [2_270_000, "2.27 M"],
    [134_515_008, "135 M"],
    [999_600_000, "1.00 B"],
    [8_030_000_000, "8.03 B"],
  ])("about %d is %s", (n, shown) => expect(en.compact(n)).toBe(shown));
});

describe("shares", () => {
  test.each([
    [0, "0 %"],
    [0.0004, "0.1 %"],
    [0.004, "0.4 %"],
    [0.38, "38 %"],
    [0.994, "99.4 %"],
    [0.9999, "99.9 %"],
    [1, "100 %"],
  ])("%d is %s: neither end is reached before it is", (share, shown) => expect(en.percent(share)).toBe(shown));
  test("Chinese has no space before the sign", () => expect(zh.percent(0.6)).toBe("60%"));
});

describe("rates, losses, speeds", () => {
  test("learning rates are short powers", () => {
    expect([2e-4, 7.13e-5, 1, 0, 0.00099].map((v) => en.rate(v))).toEqual(["2e-4", "7.1e-5", "1e0", "0", "9.9e-4"]);
  });
  test("a loss has three decimals until it is large", () => {
    expect([0, 0.0004, 1.2345, 99.9, 1234.5].map((v) => en.loss(v))).toEqual([
      "0.000",
      "0.000",
      "1.234",
      "99.900",
      "1,234.5",
    ]);
  });
  test("a speed has a decimal until it is large", () => {
    expect([8.44, 99.94, 99.96, 5100].map((v) => en.speed(v))).toEqual(["8.4", "99.9", "100", "5,100"]);
  });
  test("a short figure pads nothing", () => {
    expect([3, 0.5, 1.25, 2.999, 100, 1200].map((v) => en.short(v))).toEqual([
      "3",
      "0.5",
      "1.25",
      "3",
      "100",
      "1,200",
    ]);
  });
  test("ticks have the decimals that tell them apart", () => {
    expect([1.25, 1.5, 2].map((v) => en.tick(v, 0.25))).toEqual(["1.25", "1.50", "2.00"]);
    expect([0, 250, 5000].map((v) => en.tick(v, 250))).toEqual(["0", "250", "5,000"]);
    expect(en.tick(0.30000000000000004, 0.1)).toBe("0.3");
  });
});

describe("times of day", () => {
  const noon = new Date(2026, 10, 29, 12, 5).getTime();
  test("today is a clock, another day has its date", () => {
    expect(en.clock(noon, noon)).toBe("12:05");
    expect(en.clock(noon - 86_400_000, noon)).toBe("28 Nov 12:05");
    expect(zh.clock(noon - 86_400_000, noon)).toBe("11月28日 12:05");
  });
});

test("a price is in whole dollars, grouped", () => {
  expect(en.price(1599)).toBe("$1,599");
  expect(zh.price(249.4)).toBe("$249");
});

describe("what is typed", () => {
  test.each([
    ["4096", 4096],
    [" 4 096 ", 4096],
    ["4,096", 4096],
    ["1,234,567.5", 1234567.5],
    ["0,35", 0.35],
    ["0,350", 0.35],
    ["12,5", 12.5],
    ["2e-4", 2e-4],
    ["４０９６", 4096],
    ["０．３５", 0.35],
    ["１，０２４", 1024],
  ])("“%s” is %d", (typed, number) => expect(parseNumber(typed)).toBe(number));

  test.each(["", "many", "1,2,3", "1.024,5", "12 GB", "0x10", "Infinity", "1.2.3"])("“%s” is no number", (typed) =>
    expect(parseNumber(typed)).toBeNaN(),
  );

  test("a number is read as it was written", () => {
    for (const n of [0, 7, 999, 1000, 1_000_000, 0.25, 1234.5]) expect(parseNumber(en.short(n)), en.short(n)).toBe(n);
    expect(parseNumber(en.rate(7.1e-5))).toBe(7.1e-5);
  });

  test.each([
    ["22:00-07:00", "22:00-07:00"],
    [" 22:00 – 7:00 ", "22:00-07:00"],
    ["２２：００～０７：００", "22:00-07:00"],
    ["9:30—12:00", "09:30-12:00"],
  ])("“%s” are the hours %s", (typed, hours) => expect(parseHours(typed)).toBe(hours));

  test.each(["", "25:00-07:00", "22:00", "22:00-22:00", "9:00-09:00", "night"])("“%s” are no hours", (typed) =>
    expect(parseHours(typed)).toBeNull(),
  );
});
