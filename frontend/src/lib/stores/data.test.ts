import { clearMocks, mockIPC } from "@tauri-apps/api/mocks";
import { afterEach, beforeEach, expect, test } from "vitest";

import type { Inspection } from "$lib/bindings/Inspection";

import { data } from "./data.svelte";
import { model } from "./model.svelte";

/** Files that are asked about and wait to be answered, by their path. */
let asked: Map<string, { answer: () => void; refuse: () => void }>;
const settled = () => new Promise((resolve) => setTimeout(resolve, 0));
const found = (path: string) => ({ examples: [{ of: path }], stats: { n_examples: 1 }, problems: [] });

beforeEach(() => {
  asked = new Map();
  mockIPC((_, args) => {
    const { data: path } = (args as { request: { data: string } }).request;
    return new Promise((resolve, reject) =>
      asked.set(path, {
        answer: () => resolve(found(path)),
        refuse: () => reject({ code: "data.not_found", message: "m", next_step: "n" }),
      }),
    );
  });
  model.path = "/m";
  model.found = {} as Inspection;
});
afterEach(() => {
  data.clear();
  model.clear();
  clearMocks();
});

async function opened(path: string): Promise<void> {
  const done = data.open(path);
  asked.get(path)?.answer();
  await done;
}

test("with another file nothing of the one before is shown, neither while it is read nor when it cannot be", async () => {
  await opened("/a");
  expect(data.example).toEqual({ of: "/a" });
  const done = data.open("/b");
  expect([data.found, data.example]).toEqual([null, null]);
  asked.get("/b")?.refuse();
  expect(await done).toBe(false);
  expect([data.found, data.error?.code, data.loading]).toEqual([null, "data.not_found", false]);
});

test("the same file read again stays until it has been", async () => {
  await opened("/a");
  const done = data.open("/a");
  expect(data.found).not.toBeNull();
  asked.get("/a")?.answer();
  expect(await done).toBe(true);
});

test("a file that is put away while it is read is not awaited, and its answer is not shown", async () => {
  void data.open("/a");
  expect(data.loading).toBe(true);
  data.clear();
  expect(data.loading).toBe(false);
  asked.get("/a")?.answer();
  await settled();
  expect([data.path, data.found, data.loading]).toEqual([null, null, false]);
});

test("what a model made of a file is not shown for the next one, although it comes late", async () => {
  void data.open("/a");
  data.forget();
  asked.get("/a")?.answer();
  await settled();
  expect([data.path, data.found, data.loading]).toEqual(["/a", null, false]);
});
