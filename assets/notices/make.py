#!/usr/bin/env python3
"""Writes THIRD-PARTY.md (what is shipped, by licence) and LICENCES.txt (the texts) beside itself.

    python3 assets/notices/make.py         # after a change of Cargo.lock or frontend/package-lock.json

Shipped are the crates linked into `hearth`, `hearth-cuda` and `hearth-studio` on any platform (no build scripts' or tests'
dependencies, no procedural macros) and the npm packages whose code is in the page. Where a crate offers Apache-2.0
among others, that is the choice, and its text stands once; every other package's own text is kept, equal ones once.
"""

import json
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PROGRAMS = ["hearth-engine", "hearth-studio"]
# Bundled into the page although npm counts it among the tools, with what it brings along at run time.
PAGE = ["svelte", "clsx", "esm-env"]


def crates():
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--features", "hearth-engine/cuda"]
    metadata = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    open_ids = [id for id, package in packages.items() if package["name"] in PROGRAMS]
    seen = set()
    while open_ids:
        id = open_ids.pop()
        if id in seen:
            continue
        seen.add(id)
        for dependency in nodes[id]["deps"]:
            is_macro = any("proc-macro" in target["kind"] for target in packages[dependency["pkg"]]["targets"])
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]) and not is_macro:
                open_ids.append(dependency["pkg"])
    for id in seen:
        package = packages[id]
        if package["source"] is None:
            continue
        folder = pathlib.Path(package["manifest_path"]).parent
        licence = (package["license"] or "see its text").replace("/", " OR ")
        authors = ", ".join(package["authors"]) or f"the authors of {package['name']}"
        yield package["name"], package["version"], licence, package["repository"], folder, authors


def npm_packages():
    modules = ROOT / "frontend" / "node_modules"
    lock = json.loads((ROOT / "frontend" / "package-lock.json").read_text())
    names = {path.removeprefix("node_modules/") for path, entry in lock["packages"].items()
             if path and not entry.get("dev") and not entry.get("optional")}
    for name in sorted(names | set(PAGE)):
        package = json.loads((modules / name / "package.json").read_text())
        repository = package.get("repository", "")
        repository = repository if isinstance(repository, str) else repository.get("url", "")
        repository = re.sub(r"^git\+|\.git$", "", repository)
        yield name, package["version"], package.get("license", "see its text"), repository, modules / name, name


def is_apache(licence):
    """Whether the one copy of Apache-2.0 covers it."""
    return "Apache-2.0" in licence and " AND " not in licence


def texts_of(folder, licence):
    """The licence texts to keep of a package: none where the one copy of Apache-2.0 covers it."""
    wanted = re.compile(r"^(licen[cs]e|copying|unlicense|notice|copyright)", re.IGNORECASE)
    files = sorted(path for path in folder.iterdir() if path.is_file() and wanted.match(path.name))
    if is_apache(licence):
        files = [path for path in files if path.name.upper().startswith("NOTICE")]
    return [path.read_text(errors="replace") for path in files]


def main():
    if sys.argv[1:]:
        sys.exit(__doc__)
    rows, texts, bare = [], {}, []
    for kind, packages in [("crate", crates()), ("npm", npm_packages())]:
        for name, version, licence, source, folder, authors in sorted(packages, key=lambda package: package[:2]):
            rows.append(f"| {kind} | {name} | {version} | {licence} | {source or '–'} |")
            kept = texts_of(folder, licence)
            if not kept and not is_apache(licence):
                bare.append(f"{name} {version} ({licence}): Copyright (c) {authors}")
            for text in kept:
                body = "\n".join(line.rstrip() for line in text.strip().splitlines())
                texts.setdefault(" ".join(text.split()), (body, []))[1].append(f"{name} {version}")
    table = "\n".join(rows)
    (HERE / "THIRD-PARTY.md").write_text(f"""# What others wrote and Hearth ships

Hearth itself is under Apache-2.0 (LICENSE in the root). Its programs contain the packages below, each under the
licence named; of several joined by OR, Hearth takes Apache-2.0 where it is among them. The texts are in
[LICENCES.txt](LICENCES.txt). Written by `make.py`, not by hand.

Not shipped but fetched by the demo: SmolLM2-135M-Instruct by Hugging Face (Apache-2.0), as GGUF. Not shipped but fetched by
`hearth setup-gpu`: cuBLAS and cuRAND by NVIDIA, under the NVIDIA CUDA Toolkit End User License Agreement, which is kept beside
them.

| kind | name | version | licence | source |
| --- | --- | --- | --- | --- |
{table}
""", encoding="utf-8", newline="\n")
    line = "=" * 100
    parts = [f"{line}\nEvery package whose licence offers Apache-2.0\n{line}\n\n{(ROOT / 'LICENSE').read_text().strip()}\n"]
    for body, users in sorted(texts.values(), key=lambda entry: entry[1]):
        parts.append(f"{line}\n{', '.join(users)}\n{line}\n\n{body}\n")
    without = "Packages that carry no text of their own; the terms are those of the same licence above or below"
    parts.insert(1, f"{line}\n{without}\n{line}\n\n" + "\n".join(bare) + "\n")
    (HERE / "LICENCES.txt").write_text("\n".join(parts), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
