import { fireEvent, render, screen } from "@testing-library/svelte";
import { expect, test, vi } from "vitest";

import Button from "./Button.svelte";

test("a disabled button can be reached and says why, and a click does nothing", async () => {
  const onclick = vi.fn();
  render(Button, { label: "Start", disabled: true, reason: "It does not fit.", onclick });
  const button = screen.getByRole("button");
  button.focus();
  expect(document.activeElement).toBe(button);
  expect(button.getAttribute("aria-disabled")).toBe("true");
  expect(button.title).toBe("It does not fit.");
  expect(document.getElementById(button.getAttribute("aria-describedby") ?? "")?.textContent).toBe("It does not fit.");
  await fireEvent.click(button);
  expect(onclick).not.toHaveBeenCalled();
});

test("a disabled button sends no form", async () => {
  const onsubmit = vi.fn((event: Event) => event.preventDefault());
  const form = document.body.appendChild(document.createElement("form"));
  form.addEventListener("submit", onsubmit);
  const { rerender } = render(Button, { target: form, props: { label: "Save", submit: true, disabled: true } });
  await fireEvent.click(screen.getByRole("button"));
  expect(onsubmit).not.toHaveBeenCalled();
  await rerender({ label: "Save", submit: true, disabled: false });
  await fireEvent.click(screen.getByRole("button"));
  expect(onsubmit).toHaveBeenCalledOnce();
});
