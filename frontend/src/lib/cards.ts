/** The known cards in the order in which people look for them. */

import type { Hardware } from "$lib/bindings/Hardware";
import { GIB } from "$lib/format";
import type { Profile } from "$lib/platform";

export const GROUPS = ["own", "rtx50", "rtx40", "rtx30", "rtx20", "laptop", "workstation", "datacentre"] as const;
export type Group = (typeof GROUPS)[number];

export function groupOf({ id, name, hardware, own }: Profile): Group {
  if (own) return "own";
  const driver = hardware.cards[0]?.name ?? name;
  if (/laptop/i.test(id) || /laptop|max-q design/i.test(driver)) return "laptop";
  const series = /GeForce RTX (\d)0\d\d/.exec(driver)?.[1];
  if (series !== undefined && series >= "2" && series <= "5") return `rtx${series}0` as Group;
  if (/titan rtx/i.test(driver)) return "rtx20";
  if (/server edition/i.test(driver)) return "datacentre";
  return /RTX/.test(driver) ? "workstation" : "datacentre";
}

const byName = new Intl.Collator("en", { numeric: true });

/** Every card in its group; groups without cards are left out. */
export function grouped<C extends Profile>(cards: readonly C[]): { group: Group; cards: C[] }[] {
  const found = new Map<Group, C[]>(GROUPS.map((group) => [group, []]));
  for (const card of cards) found.get(groupOf(card))?.push(card);
  return [...found]
    .filter(([, inside]) => inside.length > 0)
    .map(([group, inside]) => ({ group, cards: inside.sort((a, b) => byName.compare(a.id, b.id)) }));
}

/** "NVIDIA GeForce RTX 3060" → "RTX 3060". */
export const shortName = (name: string) => name.replace(/^NVIDIA (GeForce )?/, "");

/** Every word has to be in the card's names: "4060 ti", "12gb laptop", "ada". */
export function matches({ id, name, hardware }: Profile, query: string): boolean {
  const memory = hardware.cards[0] ? Math.round(hardware.cards[0].memory_bytes / GIB) : 0;
  const text = `${name} ${hardware.cards[0]?.name ?? ""} ${id.replace(/-/g, " ")} ${memory}gb`.toLowerCase();
  const words = query.toLowerCase().replace(/(\d+)\s*gi?b\b/g, " $1gb ").split(/[\s,]+/);
  return words.every((word) => (/^\d+gb$/.test(word) ? new RegExp(`\\b${word}\\b`).test(text) : text.includes(word)));
}

/** The card that stands for any of this memory: of the nearest in memory the slowest, so that nothing is promised. */
export function likeMemory<C extends Profile>(cards: readonly C[], gib: number): C | null {
  const cost = (known: C): [number, number, number] => {
    const card = known.hardware.cards[0];
    const off = card ? Math.abs(card.memory_bytes / GIB - gib) : Infinity;
    const old = Number.parseFloat(card?.compute_capability ?? "0") < 8 || groupOf(known) === "laptop" ? 1 : 0;
    return [old, off, card?.tensor_flops_per_s ?? Infinity];
  };
  const sorted = [...cards].sort((a, b) => {
    const [x, y] = [cost(a), cost(b)];
    return x[0] - y[0] || x[1] - y[1] || x[2] - y[2];
  });
  return sorted[0] ?? null;
}

/** The same computer with another memory on its card. */
export function withMemory(hardware: Hardware, name: string, gib: number): Hardware {
  const [card, ...others] = hardware.cards;
  if (card === undefined) return hardware;
  return { ...hardware, name, cards: [{ ...card, name, memory_bytes: gib * GIB, memory_free_bytes: null }, ...others] };
}
