//! Compiles the kernels: every `src/x.cu` becomes `x.fatbin` in the build's output folder, for all cards Hearth runs on.
//!
//! Only with the feature `cuda`. nvcc is `$CUDA_HOME/bin/nvcc` or the one on the path.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Machine code for Turing (RTX 20), Ampere (A100; RTX 30), Ada (RTX 40), Hopper and Blackwell (RTX 50). Later cards compile the PTX
/// of [`LATER`], or of the only one there is: with `HEARTH_CUDA_ARCHITECTURES=75` every card runs what Turing does, which is how its
/// kernels are tested on others.
const ARCHITECTURES: [&str; 6] = ["75", "80", "86", "89", "90", "120"];
/// The oldest that has bf16 and asynchronous copies.
const LATER: &str = "80";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    println!("cargo::rerun-if-env-changed=CUDA_HOME");
    println!("cargo::rerun-if-env-changed=HEARTH_CUDA_ARCHITECTURES");
    println!("cargo::rerun-if-changed=src");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let mut sources: Vec<PathBuf> =
        fs::read_dir("src").expect("src is readable").map(|entry| entry.expect("src is readable").path()).collect();
    sources.retain(|path| path.extension().is_some_and(|extension| extension == "cu"));
    sources.sort();
    // nvcc is single-threaded and the files are few: as many at once as cargo gave us jobs.
    let n_jobs = env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(1usize);
    for batch in sources.chunks(n_jobs.max(1)) {
        let running: Vec<_> = batch.iter().map(|source| (source, compile(source, &out))).collect();
        for (source, mut child) in running {
            let status = child.wait().expect("nvcc can be waited for");
            assert!(status.success(), "nvcc could not compile {}: {status}", source.display());
        }
    }
}

fn compile(source: &Path, out: &Path) -> std::process::Child {
    let nvcc = match env::var_os("CUDA_HOME") {
        Some(home) => Path::new(&home).join("bin").join("nvcc"),
        None => "nvcc".into(),
    };
    let chosen = env::var("HEARTH_CUDA_ARCHITECTURES").ok();
    let architectures: Vec<&str> = match &chosen {
        Some(list) => list.split(',').collect(),
        None => ARCHITECTURES.to_vec(),
    };
    let mut command = Command::new(&nvcc);
    command.args(["-fatbin", "-O3", "-std=c++17", "--compress-mode=size"]);
    for architecture in &architectures {
        command.arg(format!("-gencode=arch=compute_{architecture},code=sm_{architecture}"));
    }
    let first = architectures.first().expect("at least one architecture");
    let later = if architectures.contains(&LATER) { LATER } else { first };
    command.arg(format!("-gencode=arch=compute_{later},code=compute_{later}"));
    let name = source.file_stem().expect("a source has a name");
    command.arg("-o").arg(out.join(name).with_extension("fatbin")).arg(source);
    command.spawn().unwrap_or_else(|error| {
        panic!("{} could not be started ({error}); `cargo xtask cuda` sets up the toolkit", nvcc.display())
    })
}
