/** What the window asks of the machine it runs on. Everything else in the frontend is plain web code. */

import type { BaseFormat } from "$lib/bindings/BaseFormat";
import type { CardTable } from "$lib/bindings/CardTable";
import type { DataStats } from "$lib/bindings/DataStats";
import type { ErrorReport } from "$lib/bindings/ErrorReport";
import type { EventLine } from "$lib/bindings/EventLine";
import type { GovernorConfig } from "$lib/bindings/GovernorConfig";
import type { GpuSetup } from "$lib/bindings/GpuSetup";
import type { GpuSetupProgress } from "$lib/bindings/GpuSetupProgress";
import type { Hardware } from "$lib/bindings/Hardware";
import type { Inspection } from "$lib/bindings/Inspection";
import type { Largest } from "$lib/bindings/Largest";
import type { ModelShape } from "$lib/bindings/ModelShape";
import type { Plan } from "$lib/bindings/Plan";
import type { Proof } from "$lib/bindings/Proof";
import type { Recompute } from "$lib/bindings/Recompute";
import type { RunConfig } from "$lib/bindings/RunConfig";
import type { RunSummary } from "$lib/bindings/RunSummary";
import type { Settings } from "$lib/bindings/Settings";

/** A card that can be planned for without being in the machine. */
export interface Profile {
  id: string;
  name: string;
  hardware: Hardware;
  /** Described by the person, kept under its name. */
  own: boolean;
}

/** Figures of a card that a person describes; what is null is taken from the card it starts from. */
export interface CardFigures {
  name: string;
  /** Id of the profile it starts from. */
  from: string;
  memory_bytes: number;
  bandwidth_bytes_per_s: number;
  tensor_flops_per_s: number;
  board_power_w: number;
  release_price_usd: number | null;
}

/** Settings kept under a name; their configuration has no model, no data and no name of a run. */
export interface Preset {
  name: string;
  config: RunConfig;
}

/** Places that are known before anything is chosen. */
export interface Defaults {
  /** The small demo model, where it is on this disk. */
  bundled_model: string | null;
  /** The examples that come with Hearth. */
  demo_data: string | null;
  /** Settings with which the demo takes minutes. */
  demo_config: RunConfig | null;
  /** Where exports go unless the person says otherwise. */
  export_dir: string;
  /** Where runs are kept. */
  runs_dir: string;
  /** Run named on the command line. */
  open_run: string | null;
  version: string;
}

export interface InspectRequest {
  data: string;
  model: string;
  length: number | null;
  /** Row (from 1) of the first example that is shown. */
  from: number;
  limit: number;
}

export interface PlanRequest {
  config: RunConfig;
  shape: ModelShape;
  stats: DataStats;
  hardware: Hardware;
}

/** What is asked of every published model at once; without examples, some are assumed. */
export interface FitsRequest {
  config: RunConfig;
  stats: DataStats | null;
  hardware: Hardware;
}

/** What is asked of every published model on every known card. */
export type CardTableRequest = Omit<FitsRequest, "hardware">;

/** A published model, and what training it takes; `refused` where a wish contradicts it. */
export interface ModelFit {
  id: string;
  title: string;
  hub: string;
  instruct: string | null;
  licence: string;
  /** The licence has to be accepted on the model's page. */
  accept: boolean;
  params: number;
  download_bytes: number;
  fit: {
    fits: boolean;
    planned_bytes: number;
    budget_bytes: number;
    tokens_per_s: number;
    total_s: number;
    base: BaseFormat;
    recompute: Recompute;
    /** Something of it waits in system memory while the card computes. */
    offloads: boolean;
    length: number;
  } | null;
  refused: ErrorReport | null;
}

/** What a run folder says about itself besides its events. */
export interface RunFiles {
  plan: Plan | null;
  config: RunConfig | null;
  settings: Settings | null;
  /** When it rests or pauses by itself now, which may be other than at its start. */
  limits: GovernorConfig | null;
}

/** One thing a stream delivers. */
export type StreamMessage<Line> = { lines: Line[] } | { ended: { code: number | null; error: unknown } };

export interface Stream {
  close(): Promise<void>;
}

export type ChatLine =
  | { ready: true }
  | { which: "base" | "tuned"; token: string }
  | { which: "base" | "tuned"; done: true; text: string; n_tokens: number; tokens_per_s: number }
  | { error: unknown };

export interface ChatRequest {
  messages: { role: "system" | "user" | "assistant"; content: string }[];
  max_new_tokens: number;
  temperature: number;
  which: "base" | "tuned" | "both";
}

export interface ChatStream extends Stream {
  send(request: ChatRequest): Promise<void>;
}

export type ExportKind = "merged" | "adapter";

export interface ExportRequest {
  run: string;
  kind: ExportKind;
  folder: string;
  dtype: "f16" | "bf16" | "f32" | null;
}

export type ExportLine =
  { progress: { phase: string; done: number; total: number } } | { path: string; step: number; notes: string[]; proof: Proof } | { error: unknown };

/** Where NVIDIA's packages come from: a mirror of the package index, a folder, or where both are null the index itself. */
export interface GpuOrigin {
  mirror: string | null;
  folder: string | null;
}

/** Lines of `setup-gpu`: how far it is, then how this computer stands. */
export type GpuSetupLine = { progress: GpuSetupProgress } | GpuSetup | { error: unknown };

export type PickKind = "data" | "gguf" | "folder";

export type DropMessage = { kind: "over" } | { kind: "leave" } | { kind: "drop"; paths: string[] };

export interface Platform {
  defaults(): Promise<Defaults>;
  hardware(): Promise<Hardware>;
  /** What runs train on here, and what is missing for a card. */
  gpuSetup(): Promise<GpuSetup>;
  /** Fetches NVIDIA's libraries; closing the stream keeps what was fetched, and the next call goes on behind it. */
  fetchGpuLibraries(origin: GpuOrigin, onMessage: (message: StreamMessage<GpuSetupLine>) => void): Promise<Stream>;
  /** Known cards, each as if it were in this computer. */
  profiles(here: Hardware): Promise<Profile[]>;
  /** Keeps a described card, in place of the own one of that name; answers with all cards. */
  saveCard(figures: CardFigures, here: Hardware): Promise<Profile[]>;
  deleteCard(name: string, here: Hardware): Promise<Profile[]>;
  /** Asks for a shared file and keeps its card; null where the dialog was dismissed. */
  importCard(here: Hardware): Promise<Profile[] | null>;
  /** Asks where to, and writes a card as a file to share; false where the dialog was dismissed. */
  exportCard(id: string): Promise<boolean>;
  inspect(request: InspectRequest): Promise<Inspection>;
  /** What a model is, found with one built-in example. */
  inspectModel(model: string): Promise<Inspection>;
  /** An outline says nothing of what other choices would do, and comes sooner. */
  plan(request: PlanRequest, outline: boolean): Promise<Plan>;
  /** Every published model on a computer. */
  modelFits(request: FitsRequest): Promise<ModelFit[]>;
  /** The longest text, the largest rank, the most sequences at once and the largest model that fit. */
  largest(request: PlanRequest): Promise<Largest[]>;
  /** Every published model on every known card. */
  cardTable(request: CardTableRequest): Promise<CardTable>;
  presets(): Promise<Preset[]>;
  /** Keeps settings, in place of those that had the name; answers with all there are. */
  savePreset(name: string, config: RunConfig): Promise<Preset[]>;
  /** Forgets settings; answers with those that are left. */
  deletePreset(name: string): Promise<Preset[]>;
  start(config: RunConfig): Promise<{ run_id: string; path: string }>;
  resume(run: string): Promise<void>;
  control(run: string, action: "pause" | "continue" | "stop"): Promise<void>;
  /** When a run rests or pauses by itself from now on. */
  govern(run: string, limits: GovernorConfig): Promise<void>;
  runs(): Promise<RunSummary[]>;
  runFiles(run: string): Promise<RunFiles>;
  /** The loss of a run in at most 120 points, for small curves; null is NaN. */
  curve(run: string): Promise<(number | null)[]>;
  watch(run: string, onMessage: (message: StreamMessage<EventLine>) => void): Promise<Stream>;
  chat(model: string, run: string | null, onMessage: (message: StreamMessage<ChatLine>) => void): Promise<ChatStream>;
  /** Resolves when the export has ended; progress and the proof arrive as lines. */
  exportRun(request: ExportRequest, onMessage: (message: StreamMessage<ExportLine>) => void): Promise<Stream>;
  report(run: string): Promise<string>;
  pick(kind: PickKind): Promise<string | null>;
  onDrop(handler: (message: DropMessage) => void): Promise<void>;
  /** Shows a file or folder in the system's file manager. */
  reveal(path: string): Promise<void>;
  /** Opens a report in the system's browser. */
  open(path: string): Promise<void>;
}
