// Under LANG=C WebKit reports navigator.language as "C", which Intl rejects; uPlot formats a number while it is being
// imported and would leave the window blank. Imported before uPlot.
try {
  new Intl.NumberFormat(navigator.language);
} catch {
  Object.defineProperty(navigator, "language", { value: "en-US", configurable: true });
}

export {};
