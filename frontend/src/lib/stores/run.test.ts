import { clearMocks, mockIPC } from "@tauri-apps/api/mocks";
import type { Channel } from "@tauri-apps/api/core";
import { afterEach, expect, test, vi } from "vitest";

import { run } from "./run.svelte";

/** A window whose `watch_run` says what the test wants it to say. */
function window() {
  let channel: Channel<unknown> | null = null;
  const found = {
    say: (message: unknown) => channel?.onmessage(message),
    closed: [] as number[],
    asked: [] as string[],
    limits: [] as unknown[],
    refuses: false,
  };
  let id = 0;
  mockIPC((command, args) => {
    const given = (args ?? {}) as Record<string, unknown>;
    switch (command) {
      case "watch_run":
        channel = given.channel as Channel<unknown>;
        return ++id;
      case "close_stream":
        found.closed.push(given.id as number);
        return null;
      case "control_run":
        found.asked.push(given.action as string);
        return null;
      case "govern_run":
        if (found.refuses) throw { code: "x", message: "m", next_step: "" };
        found.limits.push(given.limits);
        return null;
      case "run_files": {
        const limits = { temperature_limit_c: 87, power_limit_w: null, quiet_hours: null, yield_to_others: false };
        return { plan: null, config: {}, settings: null, limits };
      }
      default:
        throw new Error(command);
    }
  });
  return found;
}

const line = (event: Record<string, unknown>) => JSON.stringify({ time_ms: 1, ...event });
const started = line({ type: "started", run_id: "r", pid: 1, step: 0, n_steps: 9, resumed: false });
const step = (n: number) =>
  line({
    type: "step",
    step: n,
    epoch: 0,
    loss: 1,
    learning_rate: 1,
    grad_norm: 1,
    n_tokens: 1,
    n_supervised_tokens: 1,
    step_ms: 1,
    eta_s: null,
    memory: { planned_bytes: 1, used_bytes: 1, peak_bytes: 1 },
  });
const finished = (reason: string) => line({ type: "finished", reason, step: 2, best_step: null });
const ended = (code: number) => ({ ended: { code, error: code === 0 ? null : { code: "x", message: "m", next_step: "" } } });

afterEach(async () => {
  await run.close();
  clearMocks();
});

test("a run is starting, then running, then finished, as its events say", async () => {
  const w = window();
  await run.open("r");
  expect(run.status).toBe("starting");
  w.say({ lines: [started, step(1)] });
  expect(run.status).toBe("running");
  expect(run.state.step).toBe(1);
  w.say({ lines: [step(2), finished("completed")] });
  w.say(ended(0));
  expect(run.status).toBe("finished");
});

test("a stream that ends without an end of the run is an interruption", async () => {
  const w = window();
  await run.open("r");
  w.say({ lines: [started, step(1)] });
  w.say(ended(6));
  expect(run.status).toBe("interrupted");
  expect(run.error).toBeNull();
});

test("what was asked is forgotten once the events say that it happened", async () => {
  const w = window();
  await run.open("r");
  w.say({ lines: [started, step(1)] });
  await run.ask("pause");
  expect(run.asked).toBe("pause");
  w.say({ lines: [line({ type: "phase", name: "pause" })] });
  expect([run.status, run.asked]).toEqual(["paused", null]);
  await run.ask("continue");
  w.say({ lines: [line({ type: "phase", name: "train" })] });
  expect([run.status, run.asked]).toEqual(["running", null]);
  await run.ask("stop");
  w.say({ lines: [finished("stopped")] });
  expect([run.status, run.asked]).toEqual(["stopped", null]);
  expect(w.asked).toEqual(["pause", "continue", "stop"]);
});

test("a process that is gone was asked in vain: the run can be taken up again", async () => {
  const w = window();
  await run.open("r");
  w.say({ lines: [started, step(1)] });
  await run.ask("stop");
  expect(run.asked).toBe("stop");
  w.say(ended(6));
  expect([run.status, run.asked]).toEqual(["interrupted", null]);
});

test("limits are given whole, one change upon the other, and are as before where they cannot be given", async () => {
  const w = window();
  await run.open("r");
  await vi.waitUntil(() => run.limits !== null);
  const first = run.govern((limits) => (limits.power_limit_w = 150));
  const second = run.govern((limits) => (limits.temperature_limit_c = 80));
  await Promise.all([first, second]);
  const given = { power_limit_w: 150, temperature_limit_c: 80, quiet_hours: null, yield_to_others: false };
  expect(w.limits).toEqual([{ ...given, temperature_limit_c: 87 }, given]);
  expect(run.limits).toEqual(given);
  w.refuses = true;
  await run.govern((limits) => (limits.power_limit_w = 1));
  expect(run.limits).toEqual(given);
  expect(run.error?.message).toBe("m");
});

test("opening another run ends the stream of the one before, and shows nothing of it", async () => {
  const w = window();
  await run.open("a");
  w.say({ lines: [started, step(1)] });
  await run.open("b");
  expect(w.closed).toEqual([1]);
  expect(run.state.step).toBe(0);
});

test("a run that cannot be watched says why", async () => {
  const w = window();
  await run.open("r");
  w.say(ended(5));
  expect(run.error?.message).toBe("m");
});
