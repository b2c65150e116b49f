export const STEPS = ["card", "model", "data", "plan", "train", "use"] as const;
export type Step = (typeof STEPS)[number];
export type Screen = Step | "start" | "runs" | "settings";

/** Which screen is shown. The rail, the keys and the buttons all go through here. */
class Route {
  screen = $state<Screen>("start");

  go(screen: Screen): void {
    this.screen = screen;
  }
}

export const route = new Route();
