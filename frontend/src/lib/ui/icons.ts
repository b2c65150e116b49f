/** 16 px grid, 1.5 px line. Constant markup, no input ever gets here. */
export const ICONS = {
  check: '<path d="M3 8.5l3.2 3.2L13 5"/>',
  warn: '<path d="M8 2.2L14.6 13.5H1.4z"/><path d="M8 6.5v3.2M8 11.6v.1"/>',
  stop: '<path d="M5.2 1.8h5.6l3.4 3.4v5.6l-3.4 3.4H5.2l-3.4-3.4V5.2z"/><path d="M8 4.8v4M8 11v.1"/>',
  info: '<circle cx="8" cy="8" r="6.2"/><path d="M8 7.4v3.8M8 4.9v.1"/>',
  run: '<path d="M8 1.8a6.2 6.2 0 1 1-6.2 6.2"/><path d="M8 5v3.2l2 1.4"/>',
  list: '<path d="M5.5 4h8M5.5 8h8M5.5 12h8M2.4 4h.1M2.4 8h.1M2.4 12h.1"/>',
  gear: '<path d="M2 5h6M12 5h2M2 11h2M8 11h6"/><circle cx="10" cy="5" r="1.8"/><circle cx="6" cy="11" r="1.8"/>',
  pause: '<path d="M5.5 3.5v9M10.5 3.5v9"/>',
  square: '<path d="M4 4h8v8H4z"/>',
  play: '<path d="M5 3.2l7.5 4.8L5 12.8z"/>',
  chev: '<path d="M4.5 6.5L8 10l3.5-3.5"/>',
  file: '<path d="M4 1.8h5L12.5 5v9.2H4z"/><path d="M9 1.8V5h3.5"/>',
  folder: '<path d="M1.8 3.5h4.4l1.4 1.7h6.6v7.6H1.8z"/>',
  chip: '<path d="M4.2 4.2h7.6v7.6H4.2z"/><path d="M6.2 1.8v2.4M9.8 1.8v2.4M6.2 11.8v2.4M9.8 11.8v2.4M1.8 6.2h2.4M1.8 9.8h2.4M11.8 6.2h2.4M11.8 9.8h2.4"/>',
  heat: '<path d="M6.5 9.4V3.2a1.5 1.5 0 0 1 3 0v6.2a3 3 0 1 1-3 0z"/>',
  save: '<path d="M2.2 2.2h9.2l2.4 2.4v9.2H2.2z"/><path d="M5 2.2v3.6h5V2.2M4.6 13.8V9.2h6.8v4.6"/>',
  plus: '<path d="M8 3v10M3 8h10"/>',
  shield:
    '<path d="M8 1.6l5.4 2v4.2c0 3.2-2.2 5.5-5.4 6.6-3.2-1.1-5.4-3.4-5.4-6.6V3.6z"/><path d="M5.6 8l1.8 1.8 3.2-3.4"/>',
  disk: '<ellipse cx="8" cy="4" rx="5.6" ry="2.2"/><path d="M2.4 4v8c0 1.2 2.5 2.2 5.6 2.2s5.6-1 5.6-2.2V4M2.4 8c0 1.2 2.5 2.2 5.6 2.2s5.6-1 5.6-2.2"/>',
  clock: '<circle cx="8" cy="8" r="6.2"/><path d="M8 4.4V8l2.6 1.6"/>',
  table: '<path d="M2.5 3h11v10h-11zM2.5 6.4h11M2.5 9.7h11M6.5 6.4V13"/>',
  prev: '<path d="M9.8 4L6 8l3.8 4"/>',
  next: '<path d="M6.2 4L10 8l-3.8 4"/>',
} as const;

export type IconName = keyof typeof ICONS;
