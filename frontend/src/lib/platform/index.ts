import { tauri } from "./tauri";
import type { Platform } from "./types";

export type * from "./types";

/** The machine. Page tests put a recorded engine behind the same commands. */
export const platform: Platform = tauri;

/** Called once before anything asks the platform. */
export async function preparePlatform(): Promise<void> {
  if (import.meta.env.VITE_MOCK) (await import("./mock")).installMock();
}
