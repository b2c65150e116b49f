import { expect, test } from "vitest";

import type { CardTable } from "$lib/bindings/CardTable";
import type { TableCell } from "$lib/bindings/TableCell";
import type { ModelFit } from "$lib/platform";

import { cheapest, levelOf, ordered } from "./catalogue.svelte";

const model = (
  id: string,
  params: number,
  fits: boolean | null,
  recompute: "n" | "c0",
  speed: number,
  offloads = false,
): ModelFit => ({
  id,
  title: id,
  hub: `maker/${id}`,
  instruct: null,
  licence: "Apache-2.0",
  accept: false,
  params,
  download_bytes: 2 * params,
  fit:
    fits === null
      ? null
      : {
          fits,
          planned_bytes: params,
          budget_bytes: 10,
          tokens_per_s: speed,
          total_s: 1,
          base: "nf4",
          recompute,
          offloads,
          length: 512,
        },
  refused: fits === null ? { code: "plan.length_past_model", message: "m", next_step: "" } : null,
});

const models = [
  model("refused", 2, null, "n", 0),
  model("huge", 70, false, "c0", 9000, true),
  model("parked", 13, true, "c0", 20, true),
  model("streamed", 9, true, "n", 30, true),
  model("large", 40, false, "c0", 8000),
  model("small", 1, true, "n", 500),
  model("middle", 8, true, "c0", 60),
  model("fair", 3, true, "n", 200),
];
const ids = (order: "fit" | "size" | "speed") => ordered(models, order).map(({ id }) => id);

test("by fit what fits whole comes first, then what recomputes, what waits in system memory, what nearly fits", () => {
  expect(ids("fit")).toEqual(["fair", "small", "middle", "parked", "streamed", "large", "huge", "refused"]);
});

test("what waits in system memory is said, whether or not it is also recomputed", () => {
  const level = (id: string) => levelOf(models.find((model) => model.id === id) as ModelFit);
  expect(["fair", "middle", "parked", "streamed"].map(level)).toEqual(["whole", "recompute", "offload", "offload"]);
  expect(["huge", "large", "refused"].map(level)).toEqual(["large", "large", "refused"]);
});

test("by speed a model that does not fit is behind every one that does", () => {
  expect(ids("speed")).toEqual(["small", "fair", "middle", "streamed", "parked", "huge", "large", "refused"]);
});

test("by size everything is in one row, the smallest first", () => {
  expect(ids("size")).toEqual(["small", "refused", "fair", "middle", "streamed", "parked", "large", "huge"]);
});

test("the card that is needed is the cheapest that takes the model, however it fits; one without a price is none", () => {
  const cell = (fit: "comfortable" | "recomputing" | "no"): TableCell => ({
    planned: {
      fit,
      base: "nf4",
      length: 512,
      planned_bytes: 1,
      budget_bytes: 2,
      tokens_per_s: 3,
      total_s: 4,
      price: null,
    },
  });
  const card = (id: string, release_price_usd: number | null) => ({ id, name: id, memory_bytes: 1, release_price_usd });
  const row = {
    id: "m",
    title: "M",
    cells: [cell("no"), cell("comfortable"), cell("recomputing"), cell("comfortable"), { refused: "no" }],
  };
  const table: CardTable = {
    cards: [card("a", 100), card("b", 500), card("c", 300), card("laptop", null), card("d", 50)],
    rows: [row],
  };
  expect(cheapest(table, row, [0, 1, 2, 3, 4])?.id).toBe("c");
  expect(cheapest(table, row, [0, 1])?.id).toBe("b");
  expect(cheapest(table, row, [0, 3, 4])).toBeNull();
});
