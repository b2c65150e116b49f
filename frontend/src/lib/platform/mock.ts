/**
 * A recorded engine for the page tests: the commands of the window answered from what is written here. `?scenario=`
 * chooses what is on the disk: `fresh`, `draft`, `running`, `finished`, `failed`, `small`, `rehearsed`, `resting`; with `&card` the
 * computer has a card to train on, with `&two` another, with `&libraries` it lacks NVIDIA's libraries.
 */

import { mockIPC } from "@tauri-apps/api/mocks";
import type { Channel } from "@tauri-apps/api/core";

import type { Card } from "$lib/bindings/Card";
import type { CardReading } from "$lib/bindings/CardReading";
import type { DataStats } from "$lib/bindings/DataStats";
import type { EventLine } from "$lib/bindings/EventLine";
import type { Hardware } from "$lib/bindings/Hardware";
import type { Inspection } from "$lib/bindings/Inspection";
import type { ModelShape } from "$lib/bindings/ModelShape";
import type { Plan } from "$lib/bindings/Plan";
import type { Rehearsal } from "$lib/bindings/Rehearsal";
import type { RunConfig } from "$lib/bindings/RunConfig";
import type { RunSummary } from "$lib/bindings/RunSummary";

import { openConfig } from "$lib/draft";
import { GIB } from "$lib/format";

import { MockGpu } from "./mock-gpu";
import { mockCardTable, mockLargest, mockModelFits } from "./mock-models";
import { mockPlan, outlineOf } from "./mock-plan";
import { mockProfiles } from "./mock-profiles";
import type { CardFigures, CardTableRequest, ChatRequest, ExportRequest, FitsRequest, InspectRequest, PlanRequest, Preset, Profile } from "./types";

const MODEL = "/home/ana/.cache/hearth/SmolLM2-135M-Instruct-Q4_1.gguf";
const DATA = "/usr/share/hearth/demo/train.jsonl";
const N_STEPS = 212;

const error = (code: string, message: string, next_step: string) => ({ code, message, next_step });

const shape: ModelShape = {
  family: "llama",
  hidden: 576,
  n_layers: 30,
  n_heads: 9,
  n_kv_heads: 3,
  head_dim: 64,
  ffn: 1536,
  vocab_rows: 49152,
  rms_eps: 1e-5,
  rope: { theta: 100000, scaling: null },
  tied: true,
  max_positions: 8192,
};

const here: Hardware = {
  name: "This computer",
  processor: { name: "AMD Ryzen 5 5600X 6-Core Processor", n_cores: 6, n_threads: 12 },
  memory_total_bytes: 31.2 * GIB,
  memory_available_bytes: 21.4 * GIB,
  cards: [],
  card_report: { outcome: "no_driver", message: "No NVIDIA driver answers.", next_step: "" },
  train_on: "processor",
  disks: [
    { mount: "/", total_bytes: 931 * GIB, available_bytes: 184 * GIB },
    { mount: "/home", total_bytes: 1863 * GIB, available_bytes: 412 * GIB },
  ],
  measurements: { rates: [], overheads: [], predictions: [] },
};

const withCard: Hardware = {
  ...here,
  train_on: "card",
  card_report: null,
  cards: [
    {
      name: "NVIDIA GeForce RTX 3060",
      memory_bytes: 12 * GIB,
      memory_free_bytes: 10.9 * GIB,
      compute_capability: "8.6",
      driver: "581.42",
      bandwidth_bytes_per_s: 360e9,
      tensor_flops_per_s: 25.5e12,
      bus: "PCIe 4.0 x16",
      board_power_w: 170,
      release_price_usd: 329,
      temperature_c: 41,
      power_w: 18,
      uuid: "GPU-3f1c",
      architecture: "Ampere",
      memory_reserved_bytes: 0.22 * GIB,
      memory_users: [
        { pid: 3120, name: "chrome", bytes: 0.52 * GIB },
        { pid: 2204, name: "桌面窗口管理器 dwm", bytes: 0.31 * GIB },
        { pid: 9001, name: null, bytes: null },
      ],
      cuda: "13.0",
      link: { generation: 1, n_lanes: 8 },
      power_limit_w: 170,
      slowdown_c: 93,
      sm_clock_mhz: 210,
      sm_clock_max_mhz: 2100,
      throttle: [],
      has_display: true,
    },
  ],
  advice: [
    {
      code: "hardware.display",
      message:
        "A display is driven by the card: the desktop takes some of its memory, and is slow to answer while a run trains.",
      next_step: "If the computer has another graphics output, connect the display there.",
    },
    {
      code: "hardware.narrow_link",
      message: "The card is connected with 8 of its 16 PCIe lanes.",
      next_step: "Only what is kept in system memory gets slower. Try the slot nearest to the processor, without an adapter.",
    },
  ],
};

/** A laptop card beside it, on battery. */
const second: Card = {
  ...(withCard.cards[0] as Card),
  name: "NVIDIA GeForce RTX 4070 Laptop GPU",
  uuid: "GPU-77aa",
  architecture: "Ada Lovelace",
  memory_bytes: 8 * GIB,
  memory_free_bytes: 7.6 * GIB,
  memory_users: [],
  bus: "PCIe 4.0 x8",
  is_laptop: true,
  on_battery: true,
  has_display: false,
  throttle: ["power_limit"],
};

// ---- data ----
const TURNS: readonly (readonly [string, string])[] = [
  [
    "Lunch with Maria at Trattoria Verde on 14 March, 2 people, 12:30.",
    '{"event":"lunch","with":"Maria","place":"Trattoria Verde","date":"03-14","time":"12:30","people":2}',
  ],
  [
    "Dentist on Friday 9 May at a quarter past eight, Dr. Osei, bring the x-ray.",
    '{"event":"dentist","with":"Dr. Osei","place":null,"date":"05-09","time":"08:15","people":1}',
  ],
  [
    "后天下午三点在南京路见王工，三个人，看新店面。",
    '{"event":"visit","with":"王工","place":"南京路","date":null,"time":"15:00","people":3}',
  ],
];

function tokensOf(row: number) {
  const [question, answer] = TURNS[row % TURNS.length] as readonly [string, string];
  const split = (text: string) =>
    text.match(/\s?[A-Za-z]{1,6}|\s?\d|[\u4e00-\u9fff]{1,2}|\s?[^\sA-Za-z\d]|\s/gu) ?? [];
  let id = 1000;
  const read = (text: string) => ({ id: id++, text, learned: false });
  const learn = (text: string) => ({ id: id++, text, learned: true });
  return [
    read("<|im_start|>"),
    read("system"),
    read("\n"),
    ...split("Answer with one line of JSON: event, with, place, date, time, people.").map(read),
    read("<|im_end|>"),
    read("\n"),
    read("<|im_start|>"),
    read("user"),
    read("\n"),
    ...split(question).map(read),
    read("<|im_end|>"),
    read("\n"),
    read("<|im_start|>"),
    read("assistant"),
    read("\n"),
    ...split(answer).map(learn),
    learn("<|im_end|>"),
    read("\n"),
  ];
}

const stats: DataStats = {
  n_examples: 478,
  n_tokens: 52740,
  n_learned_tokens: 19980,
  max_tokens: 311,
  quantiles: [],
  lengths_histogram: [6, 38, 96, 121, 88, 52, 31, 20, 11, 7, 4, 2, 1, 0, 1].map((n, i) => [i * 16 + 72, n]),
} as unknown as DataStats;

function inspection(request: InspectRequest | null): Inspection {
  const from = request?.from ?? 1;
  const limit = request === null ? 1 : request.limit;
  const examples = Array.from({ length: Math.min(limit, stats.n_examples - from + 1) }, (_, i) => {
    const tokens = tokensOf(from + i - 1);
    return {
      row: from + i,
      line: from + i,
      n_tokens: tokens.length,
      n_learned: tokens.filter((t) => t.learned).length,
      tokens,
    };
  });
  const bad = request !== null;
  return {
    dataset: {
      format: "messages",
      columns: ["messages"],
      mapping: null,
      n_rows: 480,
      n_examples: stats.n_examples,
      notes: [],
    },
    problems: bad
      ? [
          {
            row: 207,
            line: 207,
            code: "json_incomplete",
            reason: "incomplete JSON, it ends early at column 112 (EOF while parsing a string)",
            left_out: true,
          },
          {
            row: 342,
            line: 342,
            code: "empty_answer",
            reason: "the assistant's turn 2 is empty",
            left_out: true,
          },
        ]
      : [],
    stats,
    n_truncated: 0,
    n_dropped_long: 0,
    model: { shape, notes: request === null ? ["Weights are Q4_1; they are trained on as 32-bit floats."] : [] },
    encoder_notes: ["The template prints the date; 26 Jul 2024 is used for all examples."],
    examples,
  } as unknown as Inspection;
}

// ---- runs ----
function noise(i: number): number {
  const x = Math.sin(i * 12.9898) * 43758.5453;
  return x - Math.floor(x) - 0.5;
}

function lossAt(step: number): number {
  return (
    0.32 +
    2.4 * Math.exp(-step / 28) +
    0.55 * Math.exp(-step / 110) +
    noise(step) * (0.12 + 0.3 * Math.exp(-step / 40))
  );
}

const START = new Date(2026, 10, 29, 18, 15).getTime();
const STEP_MS = 3900;

const ANSWERS: readonly (readonly [string, string, string])[] = [
  [
    TURNS[0]?.[0] ?? "",
    "I'm glad you're planning a lunch with Maria! Here are a few things to keep in mind:\n1. Make sure to book a table",
    TURNS[0]?.[1] ?? "",
  ],
  [
    TURNS[1]?.[0] ?? "",
    "The dentist appointment is on Friday, May 9th at 8:15 AM. Please remember to bring your x-ray.",
    TURNS[1]?.[1] ?? "",
  ],
  [TURNS[2]?.[0] ?? "", "好的，我会帮你安排后天下午三点的会面。", TURNS[2]?.[1] ?? ""],
];

/** The card of a run: it warms up, reaches its power limit and rests for heat between steps 70 and 90. */
function reading(step: number): CardReading {
  const warm = 1 - Math.exp(-step / 18);
  const rests = step > 70 && step < 90;
  return {
    used_bytes: (2.43 + noise(step * 11) * 0.01) * GIB,
    total_bytes: 12 * GIB,
    others_bytes: 1.1 * GIB,
    utilisation: (rests ? 0.72 : 0.97) + noise(step * 13) * 0.02,
    temperature_c: Math.round(44 + 41 * warm + (rests ? -3 : 0) + noise(step) * 2),
    power_w: (rests ? 128 : 166) + noise(step * 3) * 6,
    power_limit_w: 170,
    sm_clock_mhz: 1755,
    throttle: step > 10 ? ["power_limit"] : [],
  };
}

const REHEARSAL: Rehearsal = {
  time_ms: START + 21e3,
  seconds: 18.4,
  predicted: {
    tokens_per_s: 441,
    step_s: 3.83,
    evaluation_s: 40,
    total_s: 852,
    memory_bytes: 1.31 * GIB,
    checkpoint_bytes: 20 * 2 ** 20,
  },
  measured: {
    tokens_per_s: 428,
    step_s: 3.95,
    evaluation_s: 43,
    total_s: 880,
    memory_bytes: 1.29 * GIB,
    checkpoint_bytes: 19.6 * 2 ** 20,
  },
  timed: [{ n_tokens: 1690, seconds: 0.98 }],
  longest_tokens: 2048,
  optimizer_s: 0.02,
  evaluation_s: 4,
  answers_s: 2,
  checkpoint_s: 0.3,
  merge_s: 6,
  overhead_bytes: 48 * 2 ** 20,
};

export function events(until: number, end: "none" | "finished" | "failed", onCard = false): EventLine[] {
  const lines: EventLine[] = [];
  let time = START;
  const push = (event: Record<string, unknown>, ms = 0) =>
    lines.push({ time_ms: (time += ms), ...event } as EventLine);
  const evaluate = (step: number) => {
    push({ type: "phase", name: "evaluate" });
    push(
      {
        type: "evaluation",
        step,
        loss: step === 0 ? 2.94 : 0.36 + 2.3 * Math.exp(-step / 30) + 0.5 * Math.exp(-step / 120),
        best: true,
        n_supervised_tokens: 1010,
      },
      2100,
    );
    ANSWERS.forEach(([prompt, before, wanted], index) => {
      const cut = Math.round(wanted.length * 0.6);
      const answer = step === 0 ? before : step < 60 ? `${wanted.slice(0, cut)}"event":"meeting"}` : wanted;
      push({ type: "sample", step, index, prompt: `system: Answer with JSON.\nuser: ${prompt}`, answer, wanted }, 700);
    });
  };
  push({ type: "started", run_id: "2026-11-29-appointments", pid: 4242, step: 0, n_steps: N_STEPS, resumed: false });
  push({ type: "phase", name: "load_model" }, 10);
  push({ type: "phase", name: "prepare_data" }, 900);
  push({ type: "phase", name: "allocate" }, 600);
  if (onCard) {
    push({ type: "phase", name: "rehearse" }, 10);
    push({ type: "rehearsal", rehearsal: REHEARSAL }, 18400);
    if (until === 0) return lines;
  }
  evaluate(0);
  push({ type: "phase", name: "train" });
  for (let step = 1; step <= until; step++) {
    const warm = Math.min(1, step / 6);
    const rate = warm * 2e-4 * 0.5 * (1 + Math.cos((Math.PI * step) / N_STEPS));
    if (onCard && step === 34)
      push({
        type: "rung",
        step: step - 1,
        reason: "Memory ran out after step 33: 1.2 GiB for kept activations could not be had; this run holds 2.4 GiB, most of it base weights 1 GiB.",
        words:
          "From here on: 2 sequences at once instead of 4, and 8 times a step. The sequences of a step, their order and all that is learned stay the same; only the time changes.",
        from: { micro_batch: 4, accumulation: 4, head_rows: 256, recompute: "n", n_layers_eased: 0 },
        to: { micro_batch: 2, accumulation: 8, head_rows: 256, recompute: "n", n_layers_eased: 0 },
      });
    if (onCard && step === 71)
      push({
        type: "governor",
        pace: "slowed",
        code: "governor.heat",
        message: "Slowed down: the card is at 88 °C and its limit is 87 °C.",
        until_ms: null,
      });
    if (onCard && step === 90)
      push({ type: "governor", pace: "full", code: "", message: "It goes on at full speed.", until_ms: null });
    const ms = STEP_MS * (1 + noise(step * 3) * 0.06) * (step === 41 ? 1.35 : 1);
    push(
      {
        type: "step",
        step,
        epoch: (step / N_STEPS) * 3,
        loss: lossAt(step),
        learning_rate: rate,
        grad_norm: 0.42 + 2.1 * Math.exp(-step / 14) + Math.abs(noise(step * 7)) * 0.25 + (step === 96 ? 0.7 : 0),
        n_tokens: 1690 + Math.round(noise(step * 5) * 160),
        n_supervised_tokens: 640,
        step_ms: ms,
        eta_s: step < 4 ? null : ((N_STEPS - step) * STEP_MS) / 1000,
        memory: {
          planned_bytes: 1.31 * GIB,
          used_bytes: (1.24 + noise(step * 11) * 0.01) * GIB,
          peak_bytes: (1.27 + Math.min(step, 60) * 0.0003) * GIB,
          pool: onCard ? { used_bytes: 0.61 * GIB, reserved_bytes: 0.68 * GIB } : null,
        },
        card: onCard ? reading(step) : null,
      },
      ms,
    );
    if (step % 20 === 0) {
      evaluate(step);
      push({ type: "checkpoint", step, bytes: 19.6 * 2 ** 20, best: true }, 300);
    }
  }
  if (end === "finished") {
    evaluate(N_STEPS);
    push({ type: "checkpoint", step: N_STEPS, bytes: 19.6 * 2 ** 20, best: true }, 300);
    push({ type: "finished", reason: "completed", step: N_STEPS, best_step: N_STEPS });
  }
  if (end === "failed")
    push({
      type: "failed",
      error: error(
        "run.disk_full",
        "/home has 0 bytes free where the checkpoint of step 141 needs 19.6 MiB; the checkpoint of step 140 is safe.",
        "Free some space, then resume the run: it goes on from step 140.",
      ),
    });
  return lines;
}

const config: RunConfig = {
  ...openConfig(),
  name: "appointments",
  model: MODEL,
  data: { ...openConfig().data, path: DATA },
};

const other = (
  id: string,
  name: string,
  state: RunSummary["state"],
  step: number,
  loss: number,
  evaluation: number | null,
  days: number,
) =>
  ({
    id,
    name,
    state,
    step,
    n_steps: N_STEPS,
    loss,
    eval_loss: evaluation,
    started_ms: START - days * 86400e3,
    updated_ms: START - days * 86400e3 + 9e5,
    model: MODEL,
    path: `/home/ana/.local/share/Hearth/runs/${id}`,
    pid: null,
  }) as RunSummary;

const CHAT: Record<string, readonly [string, string]> = {
  default: [
    "That sounds like a great plan! To help you prepare for the meeting with Tom, here are a few suggestions:\n1. Confirm the time and place the day before.\n2. Bring the documents that you",
    '{"event":"meeting","with":"Tom","place":"office","date":"06-03","time":"09:00","people":2}',
  ],
};

export function installMock(): void {
  const query = new URLSearchParams(location.search);
  const scenario = query.get("scenario") ?? "fresh";
  const onCard = query.has("card");
  const lacks = query.has("libraries");
  const gpu = new MockGpu(onCard ? "NVIDIA GeForce RTX 3060" : null, lacks);
  const machine: Hardware = !onCard
    ? here
    : query.has("two")
      ? { ...withCard, cards: [...withCard.cards, second] }
      : withCard;
  const computer = lacks ? { ...machine, train_on: "processor" as const } : machine;
  const live = {
    step: 128,
    paused: false,
    stopped: false,
    ended: false,
    started: scenario !== "fresh" && scenario !== "draft" && scenario !== "small",
  };
  let limits = { ...config.governor, ...(scenario === "resting" ? { quiet_hours: "18:00-07:00" } : {}) };
  // The page tests look for which computers plans were made.
  const planned = new Set<string>();
  Object.assign(window, { mockPlanned: planned });
  const presets = new Map<string, Preset>();
  const own = new Map<string, Profile>();
  const cards = () => [...own.values(), ...mockProfiles(machine)];
  const channels = new Map<number, (message: unknown) => void>();
  let nextId = 1;
  const later = (ms: number, what: () => void) => setTimeout(what, ms);
  const lines = (send: (message: unknown) => void, entries: unknown[]) =>
    send({ lines: entries.map((e) => JSON.stringify(e)) });
  const open = (channel: Channel<unknown>) => {
    const id = nextId++;
    const send = (message: unknown) => {
      if (channels.has(id)) channel.onmessage(message);
    };
    channels.set(id, send);
    return { id, send };
  };

  const summaries = (): RunSummary[] => {
    if (scenario === "fresh" || scenario === "draft" || scenario === "small")
      return live.started
        ? [other("2026-11-29-appointments", "appointments", live.ended ? "finished" : "running", live.step, 0.61, 0.58, 0)]
        : [];
    const state =
      scenario === "failed" ? "failed" : scenario === "finished" ? "finished" : live.stopped ? "stopped" : "running";
    const step = scenario === "finished" ? N_STEPS : scenario === "failed" ? 140 : live.step;
    return [
      {
        ...other("2026-11-29-appointments", "appointments", state, step, 0.548, 0.571, 0),
        updated_ms: START + step * STEP_MS,
      },
      other("2026-11-28-kitchen-notes", "kitchen-notes-zh", "interrupted", 96, 0.842, 0.913, 1),
      other("2026-11-27-minutes", "minutes-to-tasks", "finished", N_STEPS, 0.611, 0.694, 2),
      other("2026-11-26-house-style", "house-style", "finished", N_STEPS, 1.118, 1.204, 3),
    ];
  };

  /** A run that lives holds memory of the card, which is no longer free. */
  const besideRuns = (card: Card): Card =>
    summaries().some(({ state }) => state === "running")
      ? { ...card, memory_free_bytes: (card.memory_free_bytes ?? 0) - 1.33 * GIB }
      : card;

  const answer = (cmd: string, args: Record<string, unknown>): unknown => {
    switch (cmd) {
      case "defaults":
        return {
          bundled_model: scenario === "fresh" && location.search.includes("nomodel") ? null : MODEL,
          demo_data: DATA,
          demo_config: config,
          open_run: null,
          export_dir: "/home/ana/Hearth",
          runs_dir: "/home/ana/.local/share/Hearth/runs",
          version: "0.1.0",
        };
      case "hardware":
        return scenario === "small"
          ? { ...here, memory_available_bytes: 0.9 * GIB, memory_total_bytes: 3.8 * GIB }
          : { ...machine, train_on: gpu.report().train_on, cards: machine.cards.map(besideRuns) };
      case "gpu_setup":
        return gpu.report();
      case "fetch_gpu_libraries": {
        const { id, send } = open(args.channel as Channel<unknown>);
        const tick = () => {
          if (!channels.has(id)) return;
          const progress = gpu.next();
          lines(send, [progress === null ? gpu.report() : { progress }]);
          if (progress === null) send({ ended: { code: 0, error: null } });
          else later(60, tick);
        };
        later(10, tick);
        return id;
      }
      case "profiles":
        return cards();
      case "save_card": {
        const { name, from, ...figures } = args.figures as CardFigures;
        const basis = cards().find(({ id }) => id === from) as Profile;
        const [first] = basis.hardware.cards;
        own.set(name, { ...basis, id: name, name, own: true, hardware: { ...basis.hardware, name, cards: [{ ...(first as Card), ...figures }] } });
        return cards();
      }
      case "delete_card":
        own.delete(args.name as string);
        return cards();
      case "import_card": {
        const basis = cards().find(({ id }) => id === "rtx-3060-12gb") as Profile;
        own.set("Shared 3060 共享", { ...basis, id: "Shared 3060 共享", name: "Shared 3060 共享", own: true });
        return cards();
      }
      case "export_card":
        return true;
      case "inspect_model": {
        const path = args.model as string;
        if (path.includes("pickle"))
          throw error(
            "model.pickle_only",
            `${path} has only pickle weights (pytorch_model.bin); pickle can run code while it is read.`,
            "Choose a folder with .safetensors files, or a GGUF file of the model.",
          );
        return inspection(null);
      }
      case "inspect": {
        const request = args.request as InspectRequest;
        if (request.data.includes("missing"))
          throw error(
            "data.not_found",
            `${request.data} does not exist.`,
            "Check the path, or choose the file again.",
          );
        return inspection(request);
      }
      case "plan": {
        const request = args.request as PlanRequest;
        planned.add(request.hardware.name);
        if (request.config.data.length !== null && request.config.data.length < 32)
          throw error(
            "plan.all_too_long",
            `all 478 examples are longer than ${request.config.data.length} tokens (the shortest has about 72) and would be left out`,
            "Choose a length of at least 72, or set over_length to truncate.",
          );
        const capability = Number.parseFloat(request.hardware.cards[0]?.compute_capability ?? "");
        if (request.config.compute === "bf16" && capability < 8)
          throw error(
            "plan.no_compute",
            `${request.hardware.name} does not compute in bf16`,
            "Leave compute out, or set it to f16.",
          );
        return args.outline ? outlineOf(mockPlan(request)) : mockPlan(request);
      }
      case "model_fits":
        return mockModelFits(args.request as FitsRequest);
      case "largest":
        return mockLargest(args.request as PlanRequest);
      case "card_table":
        return mockCardTable(args.request as CardTableRequest, machine);
      case "list_presets":
        return [...presets.values()];
      case "save_preset": {
        const name = (args.name as string).trim();
        presets.set(name, { name, config: args.config as RunConfig });
        return [...presets.values()].sort((a, b) => a.name.localeCompare(b.name));
      }
      case "delete_preset":
        presets.delete(args.name as string);
        return [...presets.values()];
      case "start_run":
        live.started = true;
        live.ended = false;
        live.step = 0;
        return {
          run_id: "2026-11-29-appointments",
          path: "/home/ana/.local/share/Hearth/runs/2026-11-29-appointments",
        };
      case "resume_run":
        live.stopped = false;
        return null;
      case "control_run":
        if (args.action === "stop") live.stopped = true;
        else live.paused = args.action === "pause";
        for (const send of channels.values()) {
          if (args.action === "stop") {
            lines(send, [
              { time_ms: START + 6e5, type: "finished", reason: "stopped", step: live.step, best_step: 120 },
            ]);
            send({ ended: { code: 0, error: null } });
          } else lines(send, [{ time_ms: START + 6e5, type: "phase", name: live.paused ? "pause" : "train" }]);
        }
        return null;
      case "govern_run": {
        limits = args.limits as RunConfig["governor"];
        const go = { type: "governor", pace: "full", code: "", message: "It goes on at full speed.", until_ms: null };
        if (scenario === "resting" && limits.quiet_hours === null)
          for (const send of channels.values())
            lines(send, [go, { type: "phase", name: "train" }].map((e) => ({ time_ms: START + 6e5, ...e })));
        return null;
      }
      case "runs":
        return summaries();
      case "run_files":
        return {
          plan: mockPlan({ config, shape, stats, hardware: computer } as PlanRequest) as Plan,
          config,
          settings: (mockPlan({ config, shape, stats, hardware: computer } as PlanRequest) as Plan).settings,
          limits,
        };
      case "run_curve":
        return Array.from({ length: 96 }, (_, i) => lossAt((i * N_STEPS) / 96));
      case "watch_run": {
        const { id, send } = open(args.channel as Channel<unknown>);
        later(5, () => {
          if (scenario === "finished") {
            lines(send, events(N_STEPS, "finished"));
            send({ ended: { code: 0, error: null } });
          } else if (scenario === "failed") {
            lines(send, events(140, "failed"));
            send({ ended: { code: 4, error: null } });
          } else if (scenario === "running") {
            lines(send, events(128, "none", onCard));
          } else if (scenario === "rehearsed") {
            lines(send, events(0, "none", true));
          } else if (scenario === "resting") {
            lines(send, events(60, "none", true));
            const message = "Paused for the quiet hours; it goes on at 07:00.";
            const until_ms = START + 13 * 36e5;
            const held = { type: "governor", pace: "paused", code: "governor.quiet_hours", message, until_ms };
            lines(send, [held, { type: "phase", name: "pause" }].map((e) => ({ time_ms: START + 4e5, ...e })));
          } else {
            // A run started here: the whole of it, quickly.
            const all = events(N_STEPS, "finished");
            let at = 0;
            const tick = () => {
              lines(send, all.slice(at, (at += 25)));
              if (at < all.length) later(15, tick);
              else {
                live.ended = true;
                send({ ended: { code: 0, error: null } });
              }
            };
            tick();
          }
        });
        return id;
      }
      case "open_chat": {
        const { id, send } = open(args.channel as Channel<unknown>);
        later(20, () => lines(send, [{ ready: true }]));
        return id;
      }
      case "send_chat": {
        const send = channels.get(args.id as number);
        const request = args.request as ChatRequest;
        const [base, tuned] = CHAT.default as readonly [string, string];
        for (const which of request.which === "both" ? (["base", "tuned"] as const) : [request.which]) {
          const text = which === "base" ? base : tuned;
          const pieces = text.match(/.{1,4}/gsu) ?? [];
          pieces.forEach((token, i) => later(3 * i, () => send && lines(send, [{ which, token }])));
          later(
            3 * pieces.length + 10,
            () =>
              send &&
              lines(send, [
                { which, done: true, text, n_tokens: pieces.length, tokens_per_s: which === "base" ? 24.1 : 23.4 },
              ]),
          );
        }
        return null;
      }
      case "export_run": {
        const { id, send } = open(args.channel as Channel<unknown>);
        const request = args.request as ExportRequest;
        const total = 30;
        for (let i = 1; i <= total; i++)
          later(6 * i, () => lines(send, [{ progress: { phase: "export", done: i, total } }]));
        later(6 * total + 20, () => {
          lines(send, [{ path: `${request.folder}/appointments-${request.kind}`, step: N_STEPS, notes: [], proof: mockProof(request.kind) }]);
          send({ ended: { code: 0, error: null } });
        });
        return id;
      }
      case "write_report":
        return "/home/ana/.local/share/Hearth/runs/2026-11-29-appointments/report.html";
      case "close_stream":
        channels.delete(args.id as number);
        return null;
      case "pick_path":
        return args.kind === "data" ? DATA : args.kind === "gguf" ? MODEL : "/home/ana/models";
      case "watch_drops": {
        // The page test drops a file by an event of its own: a browser gives no path.
        const channel = args.channel as Channel<unknown>;
        addEventListener("mock-drop", (event) => {
          channel.onmessage({ kind: "over" });
          channel.onmessage({ kind: "drop", paths: [(event as CustomEvent<string>).detail] });
        });
        return null;
      }
      case "reveal_path":
      case "open_path":
        return null;
      default:
        throw error("window.unknown_command", `no command ${cmd}`, "");
    }
  };
  // A run that nobody follows ends by itself.
  addEventListener("mock-end", () => (live.stopped = true));
  mockIPC((cmd, args) => answer(cmd, (args ?? {}) as Record<string, unknown>));

  if (scenario === "draft" || scenario === "small")
    localStorage.setItem("hearth.session", JSON.stringify({ model: MODEL, data: DATA, run: null, screen: "data" }));
  else if (scenario !== "fresh")
    localStorage.setItem(
      "hearth.session",
      JSON.stringify({
        model: MODEL,
        data: DATA,
        run: "2026-11-29-appointments",
        screen: scenario === "finished" ? "use" : "train",
      }),
    );
}

function mockProof(kind: string): unknown {
  const check = (code: string, name: string, value: string, limit: string) => ({
    code,
    name,
    value,
    ok: true,
    limit,
  });
  return {
    kind,
    dtype: "bf16",
    verdict: "proven",
    checks: [
      check("loads", "Loaded back from the disk", "yes", "by the ordinary loader"),
      check("tokenizer", "Token ids", "equal on 4 prompts", "equal to the base's"),
      check("weights", "Weights", "272 of 272 tensors as computed", "W + (alpha / rank) B A, rounded to bf16 once"),
      check("change", "Change from the base", "210 of 210 layers differ, most layer 3 q_proj by 0.81, 4.2 % of its weight", "at least one layer differs"),
      check("logits", "Largest logit difference", "0.031", "at most 0.21 for bf16"),
      check("divergence", "Mean divergence", "0.00011 nats", "at most 0.0012 nats"),
      check(
        "greedy",
        "Greedy text",
        "4 of 4 answers equal (151 tokens)",
        "equal unless the trained model had two tokens within 0.42",
      ),
    ],
    remarks: [],
    measured: { n_prompts: 4 },
  };
}
