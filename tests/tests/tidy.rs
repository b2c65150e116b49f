//! The house rules, as tests: what is deliberately absent cannot be seen in the code.
//!
//! Each rule is a function from a file to its violations, so that it can be shown to find one.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A source file by its path from the root, with `/` everywhere.
struct Source {
    path: String,
    text: String,
}

impl Source {
    /// The code: without line comments and without its test module, which stands last.
    fn code(&self) -> String {
        let end = test_module(&self.text).unwrap_or(self.text.len());
        let lines = self.text[..end].lines().map(|line| match line.find("//") {
            // `//` in a string is an address far more often than code behind a comment
            Some(at) if !line[..at].contains('"') => &line[..at],
            _ => line,
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    fn tests(&self) -> &str {
        test_module(&self.text).map_or("", |start| &self.text[start..])
    }

    fn has_extension(&self, extensions: &[&str]) -> bool {
        self.path.rsplit_once('.').is_some_and(|(_, extension)| extensions.contains(&extension))
    }
}

/// Where `#[cfg(test)] mod … {` begins.
fn test_module(text: &str) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = text[from..].find("#[cfg(test)]") {
        let start = from + at;
        let item = text[start + "#[cfg(test)]".len()..].trim_start();
        let is_block = item
            .lines()
            .next()
            .is_some_and(|line| line.trim_start_matches("pub(crate) ").starts_with("mod ") && line.contains('{'));
        if is_block {
            return Some(start);
        }
        from = start + 1;
    }
    None
}

fn root() -> PathBuf {
    fs::canonicalize(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).unwrap()
}

/// All text files written by hand below these folders.
fn sources(folders: &[&str]) -> Vec<Source> {
    const SKIPPED: [&str; 8] =
        ["target", "node_modules", "dist", "dist-mock", "test-results", "gen", "bindings", "__pycache__"];
    const READ: [&str; 14] =
        ["rs", "cu", "cuh", "ts", "js", "svelte", "css", "html", "py", "toml", "md", "sh", "yml", "yaml"];
    let root = root();
    let mut found = Vec::new();
    let mut open: Vec<_> = folders.iter().map(|folder| root.join(folder)).collect();
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if !SKIPPED.contains(&name.as_str()) {
                    open.push(path);
                }
            } else if path.extension().is_some_and(|extension| READ.iter().any(|read| extension == *read)) {
                let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                found.push(Source { path: relative(&path, &root), text });
            }
        }
    }
    assert!(!found.is_empty(), "nothing below {folders:?}");
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn relative(path: &Path, root: &Path) -> String {
    let parts = path.strip_prefix(root).unwrap().components();
    parts.map(|part| part.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("/")
}

/// Fails with every violation that `rule` finds.
fn check(sources: &[Source], rule: impl Fn(&Source) -> Option<String>) {
    let violations: Vec<_> =
        sources.iter().filter_map(|source| rule(source).map(|why| format!("{}: {why}", source.path))).collect();
    assert!(violations.is_empty(), "\n{}", violations.join("\n"));
}

fn source(path: &str, text: &str) -> Source {
    Source { path: path.into(), text: text.into() }
}

// ---- The engine never names the window's toolkit.

fn names_tauri(source: &Source) -> Option<String> {
    source.text.to_lowercase().contains("tauri").then(|| "names Tauri; the engine works without a window".into())
}

#[test]
fn the_engine_never_names_tauri() {
    let mut engine = sources(&["engine"]);
    engine.retain(|source| source.has_extension(&["rs", "toml", "cu", "cuh"]));
    check(&engine, names_tauri);
    assert!(names_tauri(&source("engine/Cargo.toml", "tauri = \"2\"")).is_some());
}

// ---- Only run/ writes into a run folder.

/// Names of what only a run folder holds.
const RUN_FILES: [&str; 6] =
    ["run.toml", "plan.json", "events.jsonl", "checkpoints", "optimizer.safetensors", "state.json"];

/// A file outside run/ that names a run's files and can write is under suspicion. It may read them through `run::`.
fn writes_into_a_run(source: &Source) -> Option<String> {
    const WRITES: [&str; 9] = [
        "File::create",
        "fs::write",
        "OpenOptions",
        "fs::rename",
        "fs::copy",
        "create_dir",
        "remove_file",
        "remove_dir",
        "NamedTempFile",
    ];
    if source.path.starts_with("engine/src/run/") {
        return None;
    }
    let code = source.code();
    let named = RUN_FILES.iter().find(|name| code.contains(&format!("\"{name}\"")))?;
    let write = WRITES.iter().find(|write| code.contains(*write))?;
    Some(format!("names {named} and calls {write}; only run/ writes into a run folder"))
}

#[test]
fn only_run_writes_into_a_run_folder() {
    let mut code = sources(&["engine/src", "engine/ops/src", "src-tauri/src"]);
    code.retain(|source| source.has_extension(&["rs"]));
    check(&code, writes_into_a_run);
    let text = "fn f() { fs::write(folder.join(\"state.json\"), b\"\") }";
    assert!(writes_into_a_run(&source("engine/src/export/x.rs", text)).is_some());
    assert!(writes_into_a_run(&source("engine/src/run/x.rs", text)).is_none());
    let in_tests = format!("fn f() {{}}\n#[cfg(test)]\nmod tests {{ {text} }}");
    assert!(writes_into_a_run(&source("engine/src/export/x.rs", &in_tests)).is_none());
}

// ---- Only hardware/ asks the machine what it is.

fn probes_hardware(source: &Source) -> Option<String> {
    const PROBES: [&str; 8] = [
        "nvml",
        "nvidia-smi",
        "/proc/meminfo",
        "/proc/cpuinfo",
        "/proc/driver",
        "total_memory(",
        "available_memory(",
        "disks::new",
    ];
    if source.path.starts_with("engine/src/hardware/") {
        return None;
    }
    let code = source.code().to_lowercase();
    let probe = PROBES.iter().find(|probe| code.contains(*probe))?;
    Some(format!("asks the machine ({probe}); only hardware/ does, everything else is given a &Hardware"))
}

#[test]
fn only_hardware_probes_the_machine() {
    let mut code = sources(&["engine/src", "engine/ops/src", "src-tauri/src"]);
    code.retain(|source| source.has_extension(&["rs"]));
    check(&code, probes_hardware);
    assert!(probes_hardware(&source("engine/src/plan/mod.rs", "let bytes = system.total_memory();")).is_some());
}

// ---- Memory of a run is admitted by one gate.

fn allocates_past_the_gate(source: &Source) -> Option<String> {
    let folders = ["engine/src/step/", "engine/src/generate/", "engine/src/run/"];
    let is_bound = folders.iter().any(|folder| source.path.starts_with(folder)) && !source.path.ends_with("tests.rs");
    (is_bound && source.code().contains("Tensor::zeros")).then(|| {
        "makes a tensor past the gate; ops::memory::Held::zeros counts it, limits it and can be made to fail".into()
    })
}

#[test]
fn memory_of_a_run_is_admitted_by_one_gate() {
    let mut code = sources(&["engine/src"]);
    code.retain(|source| source.has_extension(&["rs"]));
    check(&code, allocates_past_the_gate);
    assert!(allocates_past_the_gate(&source("engine/src/step/x.rs", "Tensor::zeros(n, dtype, device)?")).is_some());
}

// ---- Operations: a backward for each, a test for each, a reference beside each kernel.

fn drops_gradients(source: &Source) -> Option<String> {
    source.code().contains("_no_bwd").then(|| "applies an operation without a backward".into())
}

#[test]
fn no_operation_used_in_training_lacks_a_backward() {
    let mut code = sources(&["engine/src", "engine/ops/src"]);
    code.retain(|source| source.has_extension(&["rs"]));
    check(&code, drops_gradients);
    assert!(drops_gradients(&source("engine/src/step/x.rs", "x.apply_op1_no_bwd(&op)")).is_some());
}

/// An operation has tests, and one that has a backward has a test that compares the gradient with something else:
/// finite differences, or values that another implementation computed.
fn lacks_a_reference_test(source: &Source) -> Option<String> {
    const COMPARED: [&str; 3] = ["gradient", "pytorch", "bitsandbytes"];
    let tests = source.tests().split("#[test]").skip(1);
    let names: Vec<_> =
        tests.filter_map(|test| test.split_once("fn ")?.1.split_once('(')).map(|(name, _)| name).collect();
    if names.is_empty() {
        return Some("an operation without a test".into());
    }
    let has_backward = source.code().contains("_backward(");
    let is_compared = names.iter().any(|name| COMPARED.iter().any(|word| name.contains(word)));
    (has_backward && !is_compared).then(|| format!("no test named after its gradient among {names:?}"))
}

/// The modules that `engine/ops/src/lib.rs` declares public: the others support them.
fn operations(all: Vec<Source>) -> Vec<Source> {
    let module = all.iter().find(|source| source.path == "engine/ops/src/lib.rs").expect("engine/ops/src/lib.rs");
    let names: Vec<_> =
        module.text.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';')).collect();
    assert!(names.len() > 5, "{names:?}");
    let paths: Vec<_> = names.iter().map(|name| format!("engine/ops/src/{name}.rs")).collect();
    all.into_iter().filter(|source| paths.contains(&source.path)).collect()
}

#[test]
fn every_operation_has_a_test_and_every_backward_a_gradient_test() {
    check(&operations(sources(&["engine/ops/src"])), lacks_a_reference_test);
    let path = "engine/ops/src/x.rs";
    assert!(lacks_a_reference_test(&source(path, "pub fn x() {}")).is_some());
    let vague = "pub fn x_backward() {}\n#[cfg(test)]\nmod tests {\n#[test]\nfn works() {}\n}";
    assert!(lacks_a_reference_test(&source(path, vague)).is_some());
    assert!(lacks_a_reference_test(&source(path, &vague.replace("works", "gradient_agrees"))).is_none());
    assert!(lacks_a_reference_test(&source(path, &vague.replace("x_backward", "x_copy"))).is_none());
}

/// A kernel `x.cu` needs `x.rs` with a reference on the processor and tests.
fn lacks_a_reference(kernel: &Source, all: &[Source]) -> Option<String> {
    let twin = kernel.path.replace(".cu", ".rs");
    let Some(twin) = all.iter().find(|source| source.path == twin) else { return Some(format!("no {twin}")) };
    if !twin.text.contains("cpu_fwd") {
        return Some(format!("{} has no cpu_fwd", twin.path));
    }
    lacks_a_reference_test(twin)
}

#[test]
fn every_kernel_has_a_reference_and_a_test() {
    let all = sources(&["engine/ops/src"]);
    for kernel in all.iter().filter(|source| source.has_extension(&["cu"])) {
        assert_eq!(lacks_a_reference(kernel, &all), None, "{}", kernel.path);
    }
    assert!(lacks_a_reference(&source("engine/ops/src/x.cu", ""), &[]).is_some());
}

// ---- The page meets its surroundings in one folder.

fn imports_tauri_elsewhere(source: &Source) -> Option<String> {
    let is_allowed = source.path.starts_with("frontend/src/lib/platform/");
    (source.text.contains("@tauri-apps/") && !is_allowed)
        .then(|| "imports Tauri; only frontend/src/lib/platform/ does".into())
}

#[test]
fn the_frontend_imports_tauri_in_one_folder_only() {
    let mut page = sources(&["frontend/src"]);
    // the page's own tests speak of the rule
    page.retain(|source| source.has_extension(&["ts", "js", "svelte"]) && !source.path.ends_with(".test.ts"));
    check(&page, imports_tauri_elsewhere);
    let import = "import { invoke } from '@tauri-apps/api/core'";
    assert!(imports_tauri_elsewhere(&source("frontend/src/lib/views/x.svelte", import)).is_some());
}

// ---- Modules stay readable.

fn is_too_long(source: &Source) -> Option<String> {
    const LONGEST: usize = 900;
    let n_lines = source.text.lines().count();
    (n_lines > LONGEST).then(|| format!("{n_lines} lines; at most {LONGEST}, better 600"))
}

#[test]
fn no_file_is_too_long_to_be_read() {
    let mut all = sources(&["engine", "src-tauri", "frontend", "tests", "xtask", "assets"]);
    all.retain(|source| source.has_extension(&["rs", "cu", "cuh", "ts", "js", "svelte", "py"]));
    check(&all, is_too_long);
    assert!(is_too_long(&source("x.rs", &"\n".repeat(901))).is_some());
}

// ---- Notices name what is shipped.

#[test]
fn the_notices_name_every_dependency_of_the_programs_in_its_locked_version() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let parsed = |path: &str| read(path).parse::<toml::Table>().unwrap();
    let notices = read("assets/notices/THIRD-PARTY.md");
    let lock = parsed("Cargo.lock");
    let locked: Vec<_> = lock["package"].as_array().unwrap().iter().collect();
    let mut missing = Vec::new();
    for manifest in ["engine/Cargo.toml", "engine/ops/Cargo.toml", "src-tauri/Cargo.toml"] {
        let dependencies = parsed(manifest)["dependencies"].as_table().unwrap().clone();
        for name in dependencies.keys().filter(|name| !name.starts_with("hearth-")) {
            let versions = locked.iter().filter(|package| package["name"].as_str() == Some(name));
            let mut rows =
                versions.map(|package| format!("| crate | {name} | {} |", package["version"].as_str().unwrap()));
            if !rows.any(|row| notices.contains(&row)) {
                missing.push(name.clone());
            }
        }
    }
    assert!(missing.is_empty(), "{missing:?} of the lock file are not there: run python3 assets/notices/make.py");
}

// ---- Links lead somewhere.

/// Relative links of a page that name nothing.
fn dead_links(source: &Source, root: &Path) -> Option<String> {
    let folder = root.join(Path::new(&source.path).parent().unwrap_or(Path::new("")));
    let targets = source.text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    let dead: Vec<_> = targets
        .filter(|target| !target.contains("://") && !target.starts_with('#') && !target.contains(char::is_whitespace))
        .filter(|target| !folder.join(target.split('#').next().unwrap_or(target)).exists())
        .collect();
    (!dead.is_empty()).then(|| format!("links to {dead:?}, which are not there"))
}

#[test]
fn links_in_the_documentation_lead_somewhere() {
    let mut pages = sources(&["engine", "frontend", "assets", "tests", "xtask"]);
    pages.retain(|source| source.has_extension(&["md"]));
    pages.push(source("README.md", &fs::read_to_string(root().join("README.md")).unwrap()));
    check(&pages, |page| dead_links(page, &root()));
    assert!(dead_links(&source("README.md", "[x](no/such/file.md)"), &root()).is_some());
}
