import { flushSync } from "svelte";

/** What the screen that is shown answers to the keys; set while it is mounted. */
class Keys {
  primary: (() => void) | null = null;
  pause: (() => void) | null = null;
  exportNow: (() => void) | null = null;
  chooseFile: (() => void) | null = null;
  search: (() => void) | null = null;
  bracket: ((direction: 1 | -1) => void) | null = null;

  /** Sets keys and returns what removes them again, for use in an effect. */
  bind(handlers: Partial<Pick<Keys, "primary" | "pause" | "exportNow" | "chooseFile" | "search" | "bracket">>): () => void {
    Object.assign(this, handlers);
    return () => {
      for (const key of Object.keys(handlers) as (keyof typeof handlers)[])
        if (this[key] === handlers[key]) this[key] = null;
    };
  }
}

export const keys = new Keys();

/** Single letters act only outside text fields. */
export function isTyping(target: EventTarget | null): boolean {
  return (
    target instanceof HTMLElement &&
    (target.isContentEditable ||
      target instanceof HTMLTextAreaElement ||
      target instanceof HTMLSelectElement ||
      (target instanceof HTMLInputElement && !["checkbox", "radio", "range", "button"].includes(target.type)))
  );
}

/** Has what is being typed taken, as leaving its field does, and stays there; false where it cannot be taken. */
export function takeTyped(): boolean {
  const field = document.activeElement;
  if (!(field instanceof HTMLInputElement)) return true;
  field.blur();
  flushSync();
  field.focus();
  return field.getAttribute("aria-invalid") !== "true";
}
