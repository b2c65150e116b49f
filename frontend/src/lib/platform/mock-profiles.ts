import type { Hardware } from "$lib/bindings/Hardware";

import type { Profile } from "./types";

const files = import.meta.glob<string>("../../../../assets/profiles/*.toml", {
  query: "?raw",
  import: "default",
  eager: true,
});

/** The cards the engine brings along, read from its own files as far as the page shows them; for page tests only. */
export function mockProfiles(here: Hardware): Profile[] {
  return Object.values(files).flatMap((text) => {
    const [head = "", card] = text.split(/^\[card\]$/m);
    if (card === undefined) return [];
    const word = (of: string, key: string) => new RegExp(`^${key} = "(.*)"$`, "m").exec(of)?.[1] ?? "";
    const number = (key: string) => {
      const found = new RegExp(`^${key} = ([\\d_.]+)$`, "m").exec(card)?.[1];
      return found === undefined ? null : Number(found.replace(/_/g, ""));
    };
    const name = word(head, "name");
    const hardware: Hardware = {
      ...here,
      name,
      train_on: "card",
      card_report: null,
      measurements: { rates: [], overheads: [], predictions: [] },
      cards: [
        {
          name: word(card, "name"),
          memory_bytes: number("memory_bytes") ?? 0,
          memory_free_bytes: null,
          compute_capability: word(card, "compute_capability"),
          driver: null,
          bandwidth_bytes_per_s: number("bandwidth_bytes_per_s"),
          tensor_flops_per_s: number("tensor_flops_per_s"),
          bus: word(card, "bus"),
          board_power_w: number("board_power_w"),
          release_price_usd: number("release_price_usd"),
          temperature_c: null,
          power_w: null,
        },
      ],
    };
    return [{ id: word(head, "id"), name, hardware, own: false }];
  });
}
