import type { ErrorReport } from "$lib/bindings/ErrorReport";

/** Whatever was thrown, in the form in which errors are shown. */
export function toReport(error: unknown): ErrorReport {
  if (typeof error === "object" && error !== null) {
    const { code, message, next_step } = error as Partial<ErrorReport>;
    if (typeof message === "string")
      return { code: code ?? "window.internal", message, next_step: typeof next_step === "string" ? next_step : "" };
  }
  return { code: "window.internal", message: String(error), next_step: "" };
}
