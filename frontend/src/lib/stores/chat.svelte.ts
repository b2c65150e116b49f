import type { ErrorReport } from "$lib/bindings/ErrorReport";
import { toReport } from "$lib/errors";
import { platform, type ChatLine, type ChatRequest, type ChatStream, type StreamMessage } from "$lib/platform";

export interface Answer {
  text: string;
  done: boolean;
  nTokens: number | null;
  tokensPerS: number | null;
}

export interface Turn {
  prompt: string;
  base: Answer;
  tuned: Answer;
}

type Side = "base" | "tuned";

const fresh = (): Answer => ({ text: "", done: false, nTokens: null, tokensPerS: null });

/** The playground: one child of the engine holds base and adapter and answers both ways. */
class ChatStore {
  turns = $state<Turn[]>([]);
  temperature = $state(0);
  maxNewTokens = $state(128);
  ready = $state(false);
  loading = $state(false);
  busy = $derived(this.turns.some((t) => !t.base.done || !t.tuned.done));
  error = $state.raw<ErrorReport | null>(null);
  #stream: ChatStream | null = null;
  #for: string | null = null;
  #generation = 0;

  /** Loads the models of a run unless they are loaded already. */
  async open(model: string, run: string): Promise<void> {
    const key = `${model}\n${run}`;
    if (this.#for === key) return;
    await this.close();
    const generation = ++this.#generation;
    this.#for = key;
    this.loading = true;
    this.error = null;
    try {
      const stream = await platform.chat(model, run, (message) => {
        if (generation === this.#generation) this.#take(message);
      });
      if (generation === this.#generation) this.#stream = stream;
      else await stream.close();
    } catch (error) {
      this.loading = false;
      this.#for = null;
      this.error = toReport(error);
    }
  }

  async send(prompt: string): Promise<void> {
    if (this.#stream === null || !this.ready || this.busy || prompt.trim() === "") return;
    const history = (side: Side): ChatRequest["messages"] => [
      ...this.turns.flatMap((turn): ChatRequest["messages"] => [
        { role: "user", content: turn.prompt },
        { role: "assistant", content: turn[side].text },
      ]),
      { role: "user", content: prompt },
    ];
    const options = { max_new_tokens: this.maxNewTokens, temperature: this.temperature };
    const first = this.turns.length === 0;
    const requests: ChatRequest[] = first
      ? [{ messages: history("base"), which: "both", ...options }]
      : // From the second question on the two sides have different pasts.
        (["tuned", "base"] as const).map((which) => ({ messages: history(which), which, ...options }));
    this.turns.push({ prompt, base: fresh(), tuned: fresh() });
    try {
      for (const request of requests) await this.#stream.send(request);
    } catch (error) {
      this.#fail(error);
    }
  }

  clear(): void {
    if (!this.busy) this.turns = [];
  }

  async close(): Promise<void> {
    this.#generation++;
    await this.#stream?.close().catch(() => undefined);
    this.#stream = null;
    this.#for = null;
    this.ready = false;
    this.loading = false;
    this.turns = [];
  }

  #take(message: StreamMessage<ChatLine>): void {
    if ("ended" in message) {
      this.ready = false;
      this.loading = false;
      this.#stream = null;
      this.#for = null;
      if (message.ended.error !== null) this.#fail(message.ended.error);
      else this.#finish();
      return;
    }
    for (const line of message.lines) {
      if ("ready" in line) {
        this.ready = true;
        this.loading = false;
      } else if ("error" in line) {
        this.#fail(line.error);
      } else {
        const turn = this.turns.find((t) => !t[line.which].done);
        if (turn === undefined) continue;
        const answer = turn[line.which];
        if ("done" in line) {
          answer.text = line.text;
          answer.nTokens = line.n_tokens;
          answer.tokensPerS = line.tokens_per_s;
          answer.done = true;
        } else answer.text += line.token;
      }
    }
  }

  #fail(error: unknown): void {
    this.error = toReport(error);
    this.loading = false;
    this.#finish();
  }

  #finish(): void {
    for (const turn of this.turns) {
      turn.base.done = true;
      turn.tuned.done = true;
    }
  }
}

export const chat = new ChatStore();
