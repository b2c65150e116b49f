/**
 * The only formatter: every number on screen passes through here, so that the same fact looks the same everywhere. What is
 * typed is read here too.
 */

export type Lang = "en" | "zh";

/** Shown where a value is not known. */
export const UNKNOWN = "–";

export interface Formatter {
  /** 4812 → "4,812". */
  count(n: number | null | undefined): string;
  /** 2270000 → "2.27 M"; below 10,000 the exact count. */
  compact(n: number | null | undefined): string;
  /** Bytes as a bare GiB figure with two decimals, for tables whose head says GiB; something is never "0.00". */
  gib(bytes: number | null | undefined): string;
  /** Memory, always in GiB: "11.01 GiB"; something is never "0.00 GiB". */
  memory(bytes: number | null | undefined): string;
  /** A file's size; the unit is chosen after rounding, so 1023.96 MiB is "1.00 GiB". */
  file(bytes: number | null | undefined): string;
  /** Seconds as "45 s", "12 min", "3 h 05 min", "2 d 04 h". */
  duration(seconds: number | null | undefined): string;
  /** A loss: three decimals, NaN stays NaN. */
  loss(value: number | null | undefined): string;
  /** A small positive figure with up to two decimals, more where it is below 0.1. */
  figure(value: number | null | undefined): string;
  /** At most two decimals and no padding zeros: "3", "0.5", "1.25". */
  short(value: number | null | undefined): string;
  /** A tick of an axis with this distance between ticks: as many decimals as tell them apart, no more. */
  tick(value: number, step: number): string;
  /** A learning rate: "2e-4", "7.1e-5", "0". */
  rate(value: number | null | undefined): string;
  /** 0.604 → "60 %" ("60%" in Chinese); between 0 and 1 % and between 99 and 100 % one decimal. */
  percent(share: number | null | undefined): string;
  /** Tokens per second without its unit: "551", "8.4". */
  speed(tokensPerSecond: number | null | undefined): string;
  /** A price in whole US dollars: "$1,599". */
  price(usd: number | null | undefined): string;
  /** Local "18:15"; another day gets its date in front. */
  clock(ms: number | null | undefined, now?: number): string;
  /** Local "27 Nov" or "11月27日". */
  day(ms: number | null | undefined): string;
}

export const GIB = 2 ** 30;

/** True for values that cannot be shown as a number at all; NaN and infinities are shown as what they are. */
function missing(value: number | null | undefined): value is null | undefined {
  return value === null || value === undefined;
}

function special(value: number): string | null {
  if (Number.isNaN(value)) return "NaN";
  if (value === Infinity) return "∞";
  if (value === -Infinity) return "−∞";
  return null;
}

function fixed(value: number, digits: number): string {
  const text = Math.abs(value).toFixed(digits);
  // A rounded zero has no sign.
  return value < 0 && Number(text) !== 0 ? `−${text}` : text;
}

function grouped(text: string): string {
  const [whole = "", decimals] = text.split(".");
  const withCommas = whole.replace(/\B(?=(\d{3})+(?!\d))/g, ",");
  return decimals === undefined ? withCommas : `${withCommas}.${decimals}`;
}

export function formatter(lang: Lang): Formatter {
  const zh = lang === "zh";

  const number = (value: number | null | undefined, show: (value: number) => string): string =>
    missing(value) ? UNKNOWN : (special(value) ?? show(value));

  const exact = (n: number) => grouped(fixed(n, 0));

  const self: Formatter = {
    count: (n) => number(n, exact),

    compact: (n) =>
      number(n, (value) => {
        if (Math.abs(value) < 9_999.5) return exact(value);
        for (const [size, unit] of [
          [1e3, "k"],
          [1e6, "M"],
          [1e9, "B"],
        ] as const) {
          const scaled = value / size;
          // 999.96 k would read "1000 k": the next unit takes it.
          if (Math.abs(scaled) >= 999.5 && unit !== "B") continue;
          const digits = Math.abs(scaled) < 9.995 ? 2 : Math.abs(scaled) < 99.95 ? 1 : 0;
          return `${fixed(scaled, digits)} ${unit}`;
        }
        return exact(value);
      }),

    gib: (bytes) => number(bytes, (value) => (value > 0 && value < 0.005 * GIB ? "<0.01" : fixed(value / GIB, 2))),

    memory: (bytes) => number(bytes, () => `${self.gib(bytes)} GiB`),

    file: (bytes) =>
      number(bytes, (value) => {
        const units = ["B", "KiB", "MiB", "GiB", "TiB"];
        let size = value;
        for (const [i, unit] of units.entries()) {
          const last = i === units.length - 1;
          const digits =
            unit === "B" ? 0 : unit === "GiB" || unit === "TiB" ? (size < 9.995 ? 2 : 1) : size < 9.95 ? 1 : 0;
          if (last || Number(Math.abs(size).toFixed(digits)) < 1024) return `${grouped(fixed(size, digits))} ${unit}`;
          size /= 1024;
        }
        return UNKNOWN;
      }),

    duration: (seconds) =>
      number(seconds, (value) => {
        const s = Math.max(0, value);
        if (s < 59.5)
          return zh ? `${fixed(s, s < 9.95 && s > 0 ? 1 : 0)} 秒` : `${fixed(s, s < 9.95 && s > 0 ? 1 : 0)} s`;
        const minutes = Math.round(s / 60);
        if (minutes < 60) return zh ? `${minutes} 分` : `${minutes} min`;
        const pad = (n: number) => String(n).padStart(2, "0");
        const hours = Math.floor(minutes / 60);
        if (hours < 48) return zh ? `${hours} 小时 ${pad(minutes % 60)} 分` : `${hours} h ${pad(minutes % 60)} min`;
        const wholeHours = Math.round(s / 3600);
        const days = Math.floor(wholeHours / 24);
        return zh ? `${days} 天 ${pad(wholeHours % 24)} 小时` : `${days} d ${pad(wholeHours % 24)} h`;
      }),

    loss: (value) => number(value, (v) => (Math.abs(v) >= 99.95 ? grouped(fixed(v, 1)) : fixed(v, 3))),

    figure: (value) =>
      number(value, (v) => {
        const size = Math.abs(v);
        if (size === 0) return "0";
        if (size < 0.001) return exponent(v);
        if (size < 0.0995) return fixed(v, 3);
        if (size < 99.95) return fixed(v, 2);
        return grouped(fixed(v, size < 999.5 ? 1 : 0));
      }),

    short: (value) => number(value, (v) => grouped(fixed(v, 2).replace(/\.?0+$/, ""))),

    tick: (value, step) => {
      let digits = 0;
      while (digits < 6 && Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) > 1e-6) digits++;
      return number(value, (v) => grouped(fixed(v, digits)));
    },

    rate: (value) => number(value, (v) => (v === 0 ? "0" : exponent(v))),

    percent: (share) =>
      number(share, (value) => {
        const percent = value * 100;
        const edge = (percent > 0 && percent < 1) || (percent > 99 && percent < 100);
        // Never "100 %" before the end and never "0 %" for something.
        const shown = edge ? fixed(Math.min(99.9, Math.max(0.1, percent)), 1) : fixed(percent, 0);
        return zh ? `${shown}%` : `${shown} %`;
      }),

    speed: (value) => number(value, (v) => (Math.abs(v) < 99.95 ? fixed(v, 1) : grouped(fixed(v, 0)))),

    price: (usd) => number(usd, (v) => `$${exact(v)}`),

    clock: (ms, now = Date.now()) =>
      number(ms, (value) => {
        const date = new Date(value);
        const time = `${String(date.getHours()).padStart(2, "0")}:${String(date.getMinutes()).padStart(2, "0")}`;
        return date.toDateString() === new Date(now).toDateString() ? time : `${self.day(value)} ${time}`;
      }),

    day: (ms) =>
      number(ms, (value) => {
        const date = new Date(value);
        if (zh) return `${date.getMonth() + 1}月${date.getDate()}日`;
        const months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
        return `${date.getDate()} ${months[date.getMonth()]}`;
      }),
  };
  return self;
}

/** "2e-4", "7.1e-5": one decimal at most, no padding zeros. */
function exponent(value: number): string {
  const [mantissa = "0", power = "0"] = value.toExponential(1).split("e");
  return `${Number(mantissa)}e${Number(power)}`;
}

/**
 * What was typed as a number; NaN where it is none. Commas between whole groups of three separate them, a single other one is
 * a decimal comma, and digits may be as wide as a Chinese keyboard writes them.
 */
export function parseNumber(typed: string): number {
  const text = typed.normalize("NFKC").replace(/\s/g, "");
  const plain = /^[1-9]\d{0,2}(,\d{3})+(\.\d+)?$/.test(text) ? text.replaceAll(",", "") : text.replace(",", ".");
  return /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(plain) ? Number(plain) : NaN;
}

/** Typed hours of the day as the engine writes them, "22:00-07:00"; null where they are none. */
export function parseHours(typed: string): string | null {
  const text = typed.normalize("NFKC").replace(/\s*[–—−〜~-]\s*/, "-").trim();
  const found = /^([01]?\d|2[0-3]):([0-5]\d)-([01]?\d|2[0-3]):([0-5]\d)$/.exec(text);
  if (found === null) return null;
  const [from, to] = [`${found[1]?.padStart(2, "0")}:${found[2]}`, `${found[3]?.padStart(2, "0")}:${found[4]}`];
  return from === to ? null : `${from}-${to}`;
}
