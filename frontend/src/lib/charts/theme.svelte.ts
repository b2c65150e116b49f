/** Tells canvases that the tokens' colours changed: they cannot follow CSS by themselves. */
class Theme {
  version = $state(0);

  constructor() {
    if (typeof window === "undefined" || !window.matchMedia) return;
    const bump = () => (this.version += 1);
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", bump);
    new MutationObserver(bump).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  }
}

export const theme = new Theme();

/** The colour of a token now. */
export function token(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
