/** One crosshair for all panels of a screen: the step under the pointer or the arrow keys. */
export class Crosshair {
  step = $state<number | null>(null);
}
