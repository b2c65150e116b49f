/** What the Card step says of a card, row by row; a row that the driver leaves empty is none. */

import type { Card } from "$lib/bindings/Card";
import type { PcieLink } from "$lib/bindings/PcieLink";
import type { Formatter } from "$lib/format";
import type { Dictionary } from "$lib/i18n/en";

export interface Fact {
  id: string;
  name: string;
  words: string;
  /** Something to look at. */
  note: boolean;
}

const link = ({ generation, n_lanes }: PcieLink) => `PCIe ${generation}.0 x${n_lanes}`;

/** "PCIe 4.0 x16" as numbers; null for a link of another kind. */
export function parseLink(bus: string | null | undefined): PcieLink | null {
  const found = /^PCIe (\d+)(?:\.\d)? x(\d+)$/.exec(bus ?? "");
  return found ? { generation: Number(found[1]), n_lanes: Number(found[2]) } : null;
}

export function cardFacts(card: Card, m: Dictionary, f: Formatter): Fact[] {
  const w = m.card;
  const list = (...parts: (string | null | undefined | false)[]) => parts.filter(Boolean).join(m.app.comma);
  const facts: Fact[] = [];
  const add = (id: string, name: string, words: string, note = false) => {
    if (words !== "") facts.push({ id, name, words, note });
  };
  add(
    "chip",
    w.chip,
    list(card.architecture, card.compute_capability && w.capability(card.compute_capability), f.memory(card.memory_bytes)),
  );
  add("driver", w.driverName, list(card.driver, card.cuda && w.cuda(card.cuda)));
  const most = parseLink(card.bus);
  const narrow = card.link != null && most !== null && card.link.n_lanes < most.n_lanes && !card.is_laptop;
  add(
    "link",
    w.link,
    card.link ? list(w.linkNow(link(card.link)), card.bus && w.linkMost(card.bus)) : (card.bus ?? ""),
    narrow,
  );
  const limit = card.power_limit_w ?? card.board_power_w;
  add(
    "power",
    w.powerName,
    card.power_w == null
      ? limit == null
        ? ""
        : w.powerMost(f.count(limit))
      : limit == null
        ? w.power(f.count(card.power_w))
        : w.powerOf(f.count(card.power_w), f.count(limit)),
    card.on_battery === true,
  );
  add(
    "heat",
    w.heat,
    card.temperature_c == null
      ? ""
      : list(
          w.temperature(f.count(card.temperature_c)),
          card.slowdown_c != null && w.slowsAt(f.count(card.slowdown_c)),
        ),
    (card.throttle ?? []).includes("heat"),
  );
  add(
    "clocks",
    w.clocks,
    list(
      card.sm_clock_mhz != null &&
        (card.sm_clock_max_mhz != null
          ? w.clockOf(f.count(card.sm_clock_mhz), f.count(card.sm_clock_max_mhz))
          : w.clock(f.count(card.sm_clock_mhz))),
      (card.throttle ?? []).length > 0 &&
        m.train.heldBy((card.throttle ?? []).map((why) => m.train.throttles[why] ?? why).join(m.app.comma)),
    ),
  );
  add("display", w.display, card.has_display == null ? "" : card.has_display ? w.displayHere : w.displayNone);
  add("laptop", w.kind, list(card.is_laptop && w.laptop, card.on_battery === true && w.battery), card.on_battery === true);
  if (card.mig)
    add(
      "mig",
      "MIG",
      card.mig.n_parts === 0
        ? w.migEmpty
        : w.mig(f.count(card.mig.n_parts), card.mig.part ?? w.migFirst, f.memory(card.mig.whole_bytes)),
      card.mig.n_parts === 0,
    );
  return facts;
}
