"""Hearth's cells of grid.json and then the peers', on this machine's card, each in a process of its own.

    python run.py --hearth PROGRAM --scratch DIR --out OUT [--site TARBALL] [--deadline 300]

Leaves OUT/date, OUT/hearth.csv and OUT/cells.jsonl (a record for each of the peers' cells), which `cargo xtask bench card`
merges. Workers import, load and warm up side by side; the timed part of a cell runs alone on the card.
"""
import argparse
import collections
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def need_mib(c):
    """A generous guess of a cell's peak, only to decide how many may be loaded at once."""
    if c.get("cap_mib") or c.get("need_mib"):
        return c.get("need_mib") or c["cap_mib"] + 900
    base, layers, width = {"1b": (2500, 16, 2048), "8b": (7500, 32, 4096)}[c["model"]]
    tokens = c["seq"] * c["mb"]
    per = width * 2 * (60 + layers * (2 if c["checkpoint"] != "off" else 48)) / 2**20
    logits = 2.6 if c["stack"] == "hf" else 0.1
    return base + tokens * (per + logits) * 1.1 + 3000


def budget_mib():
    """What workers may hold at once: a cell's neighbours must not be what it runs out of memory for."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    query = ["nvidia-smi", "-i", first, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    return 0.88 * float(subprocess.check_output(query, text=True).split()[0])


class Worker:
    def __init__(self, cell, log, env):
        env = dict(env, **cell.get("env", {}))
        self.cell, self.q, self.r = cell, queue.Queue(), None
        self.p = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "worker.py"), "--stack", cell["stack"]],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=env, cwd=HERE)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.p.stdout:
            try:
                self.q.put(json.loads(line))
            except ValueError:
                pass
        self.q.put(dict(kind="result", ok=False, error=f"worker ended, code {self.p.wait()}"))

    def tell(self, obj):
        try:
            self.p.stdin.write(json.dumps(obj) + "\n")
            self.p.stdin.flush()
        except OSError:
            pass

    def wait(self, kinds, until):
        while True:
            try:
                m = self.q.get(timeout=max(0.05, until - time.time()))
            except queue.Empty:
                return dict(kind="result", ok=False, error="stopped by the deadline")
            if m["kind"] in kinds or m["kind"] == "result":
                return m

    def ready(self, until):
        if self.r is None:
            self.r = self.wait(("ready",), until)
        return self.r

    def stop(self):
        try:
            self.p.stdin.close()
            self.p.kill()
            self.p.wait(10)
        except Exception:
            pass


def measure_hearth(program, libraries, cells, out):
    command = [os.path.abspath(program), "--csv", os.path.join(out, "hearth.csv")]
    for cell in cells:
        command += ["--cell", cell]
    # For Hearth alone: a peer's torch brings libraries of its own.
    env = dict(os.environ, LD_LIBRARY_PATH=libraries) if libraries else None
    if subprocess.run(command, env=env).returncode != 0:
        print("Not all of Hearth's cells ran.", flush=True)


def environment(scratch, site):
    """What the peers' processes find: site.sh's packages where this Python lacks them, and caches below `scratch`."""
    env = dict(os.environ, PYTHONUNBUFFERED="1", HF_HUB_OFFLINE="1")
    for name, folder in dict(TRITON_CACHE_DIR="triton", TORCHINDUCTOR_CACHE_DIR="inductor",
                             UNSLOTH_COMPILE_LOCATION="unsloth_cache").items():
        env[name] = os.path.join(scratch, folder)
    if site:
        env["PYTHONPATH"] = os.path.join(scratch, "site")
        if not os.path.isdir(env["PYTHONPATH"]):
            shutil.unpack_archive(site, scratch)
            subprocess.run([sys.executable, "-m", "compileall", "-q", "-j", "16", env["PYTHONPATH"]],
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return env


def make_checkpoints(models, folder, env):
    making = []
    for model in models:
        path = os.path.join(folder, model)
        if not os.path.exists(os.path.join(path, "config.json")):
            command = [sys.executable, os.path.join(HERE, "make_ckpt.py"), "--model", model, "--out", path]
            making.append(subprocess.Popen(command, env=env, cwd=HERE))
    if any([process.wait() for process in making]):
        sys.exit("The peers' checkpoints could not be made.")


def measure_peers(cells, checkpoints, out, env, a):
    t0 = time.time()
    end = t0 + a.deadline
    budget = budget_mib()
    log = open(os.path.join(out, "workers.log"), "a")
    have = open(os.path.join(out, "cells.jsonl"), "w")

    def record(w, m):
        c = {k: v for k, v in w.cell.items() if k not in ("ckpt", "retried")}
        m = {k: v for k, v in m.items() if k != "kind"}
        have.write(json.dumps(dict(cell=c, at_s=round(time.time() - t0, 1), **m)) + "\n")
        have.flush()
        tag = f"{c['stack']} {c['model']} {c['seq']}x{c['mb']} {c['checkpoint']}"
        if c.get("tune") or c.get("cap_mib"):
            tag += f" in {c.get('cap_mib') or 'all'} {c.get('tune', '')} {' '.join(c.get('env', {}))}"
        short = (f"{m.get('tokens_per_s')} tok/s  {m.get('step_ms')} ms  alloc {m.get('max_alloc_mib')}"
                 f"  resv {m.get('max_reserved_mib')}  smi {m.get('smi_process_mib')}  warm {m.get('warm_total_s')}"
                 if m.get("ok") else f"FAILED {m.get('error')}")
        print(f"[{time.time() - t0:6.1f}] {tag}: {short}", flush=True)
        if not m.get("ok") and m.get("trace"):
            print(m["trace"][-1500:], flush=True)

    todo = collections.deque(cells)
    importing = collections.deque()

    def feed():
        while todo and len(importing) < a.ahead and time.time() < end - 20:
            c = todo.popleft()
            importing.append(Worker(dict(c, ckpt=os.path.join(checkpoints, c["model"])), log, env))

    while (todo or importing) and time.time() < end - 10:
        feed()
        wave, used = [], 0
        while importing and len(wave) < a.loaded:
            w = importing[0]
            m = need_mib(w.cell)
            if wave and used + m > budget:
                break
            importing.popleft()
            r = w.ready(end)
            if r["kind"] != "ready":
                record(w, r)
                w.stop()
                continue
            w.tell(w.cell)
            w.info = r
            used += m
            wave.append(w)
        alive = []
        for w in wave:
            r = w.wait(("warm",), end)
            if r["kind"] == "warm":
                alive.append(w)
            elif r.get("oom") and len(wave) > 1 and not w.cell.get("retried") and not w.cell.get("cap_mib"):
                todo.append(dict(w.cell, retried=True))
                w.stop()
            else:
                record(w, r)
                w.stop()
        for w in importing:                  # nothing else may load the CPUs while a cell is timed
            w.ready(end)
        for w in alive:
            w.tell(dict(go=True))
            r = w.wait(("result",), end)
            record(w, dict(r, import_s=w.info["import_s"], versions=w.info["versions"]))
            w.stop()
    for w in importing:
        w.stop()
    for c in [w.cell for w in importing] + list(todo):
        print("not run:", json.dumps(c), flush=True)
    print(f"the peers took {time.time() - t0:.1f} s", flush=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--hearth", required=True, help="the program of Hearth's `card` benchmark")
    ap.add_argument("--libraries", help="LD_LIBRARY_PATH for Hearth, where the loader does not find CUDA's libraries")
    ap.add_argument("--scratch", required=True, help="a folder for the peers' packages, checkpoints and caches")
    ap.add_argument("--out", required=True)
    ap.add_argument("--site", help="site.sh's tarball, where this Python has torch but not the peers' packages")
    ap.add_argument("--no-peers", action="store_true")
    ap.add_argument("--deadline", type=float, default=600, help="seconds after which no peer's cell is begun")
    ap.add_argument("--ahead", type=int, default=16, help="workers importing at once")
    ap.add_argument("--loaded", type=int, default=8, help="workers holding a model at once")
    a = ap.parse_args()
    scratch, out = os.path.abspath(a.scratch), os.path.abspath(a.out)
    checkpoints = os.path.join(scratch, "ck")
    for folder in (checkpoints, out):
        os.makedirs(folder, exist_ok=True)
    with open(os.path.join(HERE, "grid.json")) as file:
        grid = json.load(file)
    with open(os.path.join(out, "date"), "w") as file:
        file.write(time.strftime("%Y-%m-%dT%H:%MZ\n", time.gmtime()))
    measure_hearth(a.hearth, a.libraries, [row["hearth"]["cell"] for row in grid], out)
    if a.no_peers:
        return
    cells = []
    for row in grid:                         # two rows may be compared with one cell
        if row["peer"]["cell"] not in cells:
            cells.append(row["peer"]["cell"])
    env = environment(scratch, a.site)
    make_checkpoints({cell["model"] for cell in cells}, checkpoints, env)
    measure_peers(cells, checkpoints, out, env, a)


if __name__ == "__main__":
    main()
