import { fireEvent, render, screen } from "@testing-library/svelte";
import { tick } from "svelte";
import { expect, test, vi } from "vitest";

import { plan } from "$lib/stores/plan.svelte";
import ErrorNotice from "$lib/ui/ErrorNotice.svelte";
import PathField from "$lib/ui/PathField.svelte";

import NumberField from "./plan/NumberField.svelte";

const field = (onchange: (value: number | null) => void, value = 16) => ({
  label: "LoRA rank",
  value,
  changed: false,
  min: 1,
  max: 512,
  testid: "rank",
  onchange,
});

test("a number is taken when the field is left, an empty field gives it back to the engine", async () => {
  const onchange = vi.fn();
  render(NumberField, field(onchange));
  const input = screen.getByLabelText("LoRA rank");
  await fireEvent.change(input, { target: { value: "32" } });
  await fireEvent.change(input, { target: { value: " " } });
  expect(onchange.mock.calls).toEqual([[32], [null]]);
});

test("typing the number that is proposed makes it a wish", async () => {
  const onchange = vi.fn();
  render(NumberField, field(onchange));
  await fireEvent.change(screen.getByLabelText("LoRA rank"), { target: { value: "16" } });
  expect(onchange).toHaveBeenCalledWith(16);
});

test("a number out of range is said at the field and not taken", async () => {
  const onchange = vi.fn();
  render(NumberField, field(onchange));
  const input = screen.getByLabelText("LoRA rank");
  for (const wrong of ["0", "513", "many"]) {
    await fireEvent.change(input, { target: { value: wrong } });
    expect(input.getAttribute("aria-invalid"), wrong).toBe("true");
  }
  const why = document.getElementById(input.getAttribute("aria-describedby") ?? "");
  expect(why?.textContent).toBe("between 1 and 512");
  expect(onchange).not.toHaveBeenCalled();
});

test("what was refused stays with its reason when the field is left, and goes with the next value", async () => {
  const onchange = vi.fn();
  const { rerender } = render(NumberField, field(onchange));
  const input = screen.getByLabelText<HTMLInputElement>("LoRA rank");
  await fireEvent.focus(input);
  await fireEvent.input(input, { target: { value: "513" } });
  await fireEvent.change(input);
  await fireEvent.blur(input);
  expect([input.value, input.getAttribute("aria-invalid")]).toEqual(["513", "true"]);
  await rerender(field(onchange, 8));
  expect([input.value, input.getAttribute("aria-invalid")]).toEqual(["8", "false"]);
});

test("what was refused goes with another wish, also where the value stays", async () => {
  render(NumberField, field(vi.fn()));
  const input = screen.getByLabelText<HTMLInputElement>("LoRA rank");
  await fireEvent.input(input, { target: { value: "many" } });
  await fireEvent.change(input);
  expect(input.getAttribute("aria-invalid")).toBe("true");
  plan.reset();
  await tick();
  expect([input.value, input.getAttribute("aria-invalid")]).toEqual(["16", "false"]);
});

test("what the engine counts takes no fraction, and a decimal comma is one", async () => {
  const onchange = vi.fn();
  const { rerender } = render(NumberField, { ...field(onchange), whole: true });
  const input = screen.getByLabelText<HTMLInputElement>("LoRA rank");
  await fireEvent.change(input, { target: { value: "2,5" } });
  expect(onchange).not.toHaveBeenCalled();
  expect(document.querySelector(".field-error")?.textContent).toBe("a whole number between 1 and 512");
  await rerender({ ...field(onchange), whole: false });
  await fireEvent.change(input, { target: { value: "2,5" } });
  expect(onchange).toHaveBeenCalledWith(2.5);
});

test("the ends of a range are written as numbers are", async () => {
  render(NumberField, { ...field(vi.fn()), min: 1e-7, max: 1_000_000 });
  await fireEvent.change(screen.getByLabelText("LoRA rank"), { target: { value: "0" } });
  expect(document.querySelector(".field-error")?.textContent).toBe("between 1e-7 and 1,000,000");
});

test("a new plan does not write over what is being typed", async () => {
  const onchange = vi.fn();
  const { rerender } = render(NumberField, field(onchange));
  const input = screen.getByLabelText<HTMLInputElement>("LoRA rank");
  await fireEvent.focus(input);
  await fireEvent.input(input, { target: { value: "3" } });
  await rerender(field(onchange, 8));
  expect(input.value).toBe("3");
  await fireEvent.blur(input);
  expect(input.value).toBe("8");
});

test("Enter in a path field opens the path as it was typed", async () => {
  const onopen = vi.fn();
  const ids = { inputTestid: "p", openTestid: "o" };
  render(PathField, { label: "File", placeholder: "/x", value: "", onopen, ...ids });
  const input = screen.getByLabelText("File");
  expect(screen.getByTestId<HTMLButtonElement>("o").disabled).toBe(true);
  await fireEvent.input(input, { target: { value: "/数据 🔥/a b.jsonl" } });
  await fireEvent.submit(input.closest("form") as HTMLFormElement);
  expect(onopen).toHaveBeenCalledWith("/数据 🔥/a b.jsonl");
});

test("an error shows what failed, what to do and its code, and is announced", () => {
  const error = { code: "model.pickle_only", message: "only pickle weights", next_step: "Choose another folder." };
  render(ErrorNotice, { error });
  const notice = screen.getByRole("alert");
  expect(notice.dataset.code).toBe("model.pickle_only");
  expect(screen.getByTestId("error-message").textContent).toBe("only pickle weights");
  expect(screen.getByTestId("error-next").textContent).toBe("Choose another folder.");
});
