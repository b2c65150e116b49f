import { expect, test } from "vitest";

import type { Hardware } from "$lib/bindings/Hardware";
import type { Settings } from "$lib/bindings/Settings";

import {
  applyRemedy,
  choicesOf,
  computeOf,
  computesIn,
  divisors,
  forHardware,
  nextDivisor,
  openConfig,
  setAccumulation,
  setCompute,
  setMicroBatch,
  setRank,
  suggestName,
} from "./draft";

const settings = (micro_batch: number, accumulation: number) => ({ micro_batch, accumulation }) as Settings;

test("a run is named after its file", () => {
  expect(suggestName("workshop answers.v2.jsonl")).toBe("workshop-answers.v2");
  expect(suggestName("训练 🔥.csv")).toBe("训练-🔥");
  expect(suggestName(".jsonl")).toBe("run");
});

test("the open configuration fixes nothing that the engine can propose", () => {
  const config = openConfig();
  const open = [
    config.base,
    config.compute,
    config.micro_batch,
    config.accumulation,
    config.effective_batch,
    config.embedding_on_host,
    config.recompute,
    config.n_layers_eased,
    config.optimizer.kind,
    config.data.length,
    config.data.packing,
    config.epochs,
    config.max_steps,
    config.memory_limit_bytes,
  ];
  expect(open).toEqual(new Array(open.length).fill(null));
});

test("a remedy with fewer sequences at once keeps the batch and contradicts no wish for it", () => {
  const config = { ...openConfig(), micro_batch: 4, accumulation: 4, effective_batch: 16 };
  const fixed = applyRemedy(config, settings(4, 4), { setting: "micro_batch", value: "1" });
  expect(fixed).toMatchObject({ micro_batch: 1, accumulation: 16, effective_batch: null });
  expect(config.micro_batch, "the draft before is left alone").toBe(4);
});

test("a remedy keeps the batch that was proposed, too", () => {
  const fixed = applyRemedy(openConfig(), settings(3, 5), { setting: "micro_batch", value: "1" });
  expect(fixed).toMatchObject({ micro_batch: 1, accumulation: 15, effective_batch: null });
});

test("every remedy that names a setting changes that setting, and the others change nothing", () => {
  const fix = (setting: string, value: string) => applyRemedy(openConfig(), settings(1, 1), { setting, value });
  expect(fix("data.length", "448")?.data.length).toBe(448);
  expect(fix("lora.rank", "8")?.lora).toMatchObject({ rank: 8, alpha: 16 });
  expect(fix("base", "nf4")?.base).toBe("nf4");
  expect(fix("recompute", "c0")?.recompute).toBe("c0");
  expect(fix("n_layers_cached", "0")?.n_layers_cached).toBe(0);
  expect(fix("compute", "bf16")?.compute).toBe("bf16");
  expect(fix("optimizer.kind", "adam_w8")?.optimizer.kind).toBe("adam_w8");
  expect(fix("memory_limit_bytes", "123456789")?.memory_limit_bytes).toBe(123_456_789);
  expect(fix("other_programs", "")).toBeNull();
  expect(fix("model", "smollm2-135m")).toBeNull();
  expect(fix("card", "rtx-4060-ti-16gb")).toBeNull();
});

test("a remedy gives back to the engine what was kept off system memory by hand", () => {
  const fixed = { embedding_on_host: false, offload_inputs: false, n_layers_streamed: 0, mlp_rows: 9000 };
  const config = { ...openConfig(), ...fixed };
  expect(applyRemedy(config, settings(1, 1), { setting: "host_memory", value: "" })).toEqual(openConfig());
});

test("the adapter's scale stays with another rank", () => {
  const config = openConfig();
  setRank(config, 24);
  expect(config.lora).toMatchObject({ rank: 24, alpha: 48 });
});

test("a micro-batch slider stops at what divides the batch, in the direction it is moved", () => {
  expect(divisors(12)).toEqual([1, 2, 3, 4, 6, 12]);
  expect(nextDivisor(16, 4, 5)).toBe(8);
  expect(nextDivisor(16, 8, 7)).toBe(4);
  expect(nextDivisor(16, 4, 4)).toBe(4);
  expect(nextDivisor(16, 16, 17)).toBe(16);
  expect(nextDivisor(17, 1, 2)).toBe(17);
  expect(nextDivisor(1, 1, 0)).toBe(1);
});

test("a micro-batch given back leaves as many to a step as before", () => {
  const config = openConfig();
  setMicroBatch(config, 8, 16);
  setMicroBatch(config, null, 16);
  expect(config).toMatchObject({ micro_batch: null, accumulation: null, effective_batch: 16 });
});

test("a typed micro-batch that divides the batch keeps it, another comes as near as it can", () => {
  const config = openConfig();
  setMicroBatch(config, 8, 16);
  expect(config).toMatchObject({ micro_batch: 8, accumulation: 2 });
  setMicroBatch(config, 5, 16);
  expect(config).toMatchObject({ micro_batch: 5, accumulation: 3 });
  setMicroBatch(config, 64, 16);
  expect(config).toMatchObject({ micro_batch: 64, accumulation: 1 });
});

test("another number of times before a step is another batch, and giving it back is none", () => {
  const config = { ...openConfig(), effective_batch: 16 };
  setAccumulation(config, null);
  expect(config.effective_batch).toBe(16);
  setAccumulation(config, 3);
  expect(config).toMatchObject({ accumulation: 3, effective_batch: null });
});

const on = (compute_capability: string | null): Hardware =>
  ({ train_on: "card", cards: [{ compute_capability }] }) as Hardware;
const processor = { train_on: "processor", cards: [{ compute_capability: "8.6" }] } as Hardware;

test("a step computes in bf16 on cards that have it, in f16 on Turing, in f32 elsewhere", () => {
  expect(["8.0", "8.9", "12.0", null].map((c) => computeOf(on(c)))).toEqual(Array(4).fill("bf16"));
  expect(["7.0", "7.5"].map((c) => computeOf(on(c)))).toEqual(["f32", "f16"]);
  expect(computeOf(processor)).toBe("f32");
  expect(computesIn(on("8.6"))).toEqual(["bf16", "f16", "f32"]);
  expect(computesIn(on("7.5"))).toEqual(["f16", "f32"]);
  expect(computesIn(processor)).toEqual(["f32"]);
});

test("what is computed in takes an exact base along and leaves NF4", () => {
  const config = { ...openConfig(), base: "half" as const };
  setCompute(config, "f32");
  expect(config).toMatchObject({ compute: "f32", base: "f32" });
  const quantised = { ...openConfig(), base: "nf4" as const };
  setCompute(quantised, "f16");
  expect(quantised).toMatchObject({ compute: "f16", base: "nf4" });
});

test("a wish for the exact base is one on every device, NF4 and no wish stay what they are", () => {
  const base = (wish: "f32" | "half" | "nf4" | null, hardware: Hardware) =>
    forHardware({ ...openConfig(), base: wish }, hardware).base;
  expect(base("f32", on("8.6"))).toBe("half");
  expect(base("half", processor)).toBe("f32");
  expect(base("f32", on("7.5"))).toBe("half");
  expect(base("half", on("7.0"))).toBe("f32");
  expect(base("nf4", on("8.6"))).toBe("nf4");
  expect(base(null, on("8.6"))).toBeNull();
  expect(forHardware({ ...openConfig(), base: "half", compute: "f32" }, on("8.6")).base).toBe("f32");
});

test("choices hold no model, no data and no name", () => {
  const config = openConfig();
  config.name = "a";
  config.model = "/m";
  config.data = { ...config.data, path: "/d", evaluation_path: "/e", length: 448 };
  config.lora.rank = 8;
  expect(choicesOf(config)).toMatchObject({
    name: "",
    model: "",
    data: { path: "", evaluation_path: null, columns: null, length: 448 },
    lora: { rank: 8 },
  });
});
