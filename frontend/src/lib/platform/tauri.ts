import { Channel, invoke } from "@tauri-apps/api/core";

import type { DropMessage, Platform, Stream, StreamMessage } from "./types";

/** A long-lived child of the window; `close` ends it. Lines arrive in batches as the text the engine wrote. */
async function stream<Line>(
  command: string,
  args: Record<string, unknown>,
  onMessage: (message: StreamMessage<Line>) => void,
): Promise<Stream & { id: number }> {
  const channel = new Channel<StreamMessage<string>>();
  channel.onmessage = (message) => {
    if ("lines" in message) onMessage({ lines: message.lines.map((line) => JSON.parse(line) as Line) });
    else onMessage(message);
  };
  const id = await invoke<number>(command, { ...args, channel });
  return { id, close: () => invoke("close_stream", { id }) };
}

export const tauri: Platform = {
  defaults: () => invoke("defaults"),
  hardware: () => invoke("hardware"),
  gpuSetup: () => invoke("gpu_setup", { thorough: false }),
  fetchGpuLibraries: (origin, onMessage) => stream("fetch_gpu_libraries", { origin }, onMessage),
  profiles: (here) => invoke("profiles", { here }),
  saveCard: (figures, here) => invoke("save_card", { figures, here }),
  deleteCard: (name, here) => invoke("delete_card", { name, here }),
  importCard: (here) => invoke("import_card", { here }),
  exportCard: (id) => invoke("export_card", { id }),
  inspect: (request) => invoke("inspect", { request }),
  inspectModel: (model) => invoke("inspect_model", { model }),
  plan: (request, outline) => invoke("plan", { request, outline }),
  modelFits: (request) => invoke("model_fits", { request }),
  largest: (request) => invoke("largest", { request }),
  cardTable: (request) => invoke("card_table", { request }),
  presets: () => invoke("list_presets"),
  savePreset: (name, config) => invoke("save_preset", { name, config }),
  deletePreset: (name) => invoke("delete_preset", { name }),
  start: (config) => invoke("start_run", { config }),
  resume: (run) => invoke("resume_run", { run }),
  control: (run, action) => invoke("control_run", { run, action }),
  govern: (run, limits) => invoke("govern_run", { run, limits }),
  runs: () => invoke("runs"),
  runFiles: (run) => invoke("run_files", { run }),
  curve: (run) => invoke("run_curve", { run }),
  watch: (run, onMessage) => stream("watch_run", { run }, onMessage),
  chat: async (model, run, onMessage) => {
    const { id, close } = await stream("open_chat", { model, run }, onMessage);
    return { close, send: (request) => invoke("send_chat", { id, request }) };
  },
  exportRun: (request, onMessage) => stream("export_run", { request }, onMessage),
  report: (run) => invoke("write_report", { run }),
  pick: (kind) => invoke("pick_path", { kind }),
  onDrop: async (handler) => {
    const channel = new Channel<DropMessage>();
    channel.onmessage = handler;
    await invoke("watch_drops", { channel });
  },
  reveal: (path) => invoke("reveal_path", { path }),
  open: (path) => invoke("open_path", { path }),
};
