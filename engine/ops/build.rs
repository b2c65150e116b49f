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
    // The folder, so that a new kernel is seen: for an edit of a Rust file alone nothing is compiled below.
    println!("cargo::rerun-if-changed=src");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let compiler = match env::var_os("CUDA_HOME") {
        Some(home) => Path::new(&home).join("bin").join("nvcc"),
        None => "nvcc".into(),
    };
    let version = Command::new(&compiler).arg("--version").output().unwrap_or_else(|error| {
        panic!("{} could not be started ({error}); `cargo xtask cuda` sets up the toolkit", compiler.display())
    });
    let version = String::from_utf8_lossy(&version.stdout);
    let headers: String = files("cuh").iter().map(|path| read(path)).collect();
    for source in files("cu") {
        let image = out.join(source.file_stem().expect("a source has a name")).with_extension("fatbin");
        let mut command = nvcc(&compiler, &source, &image);
        // All that goes into an image; it lies beside each that was finished.
        let recipe = format!("{version}{command:?}\n{headers}{}", read(&source));
        let made_of = image.with_extension("recipe");
        if image.exists() && fs::read_to_string(&made_of).is_ok_and(|made| made == recipe) {
            continue;
        }
        let _ = fs::remove_file(&made_of);
        // One source after the other, its architectures side by side: they take about as long as one another, where the longest source
        // takes as long as many others.
        command.arg(format!("--threads={}", env::var("NUM_JOBS").as_deref().unwrap_or("1")));
        let status = command.status().expect("nvcc starts as it did above");
        assert!(status.success(), "nvcc could not compile {}: {status}", source.display());
        fs::write(&made_of, recipe).expect("the output folder can be written");
    }
}

/// The files of `src` with an extension, in the order of their names.
fn files(extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir("src").expect("src is readable");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("src is readable").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|is| is == extension));
    paths.sort();
    paths
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{} cannot be read: {error}", path.display()))
}

/// The command with which `compiler` makes `image` of `source`.
fn nvcc(compiler: &Path, source: &Path, image: &Path) -> Command {
    let chosen = env::var("HEARTH_CUDA_ARCHITECTURES").ok();
    let architectures: Vec<&str> = match &chosen {
        Some(list) => list.split(',').collect(),
        None => ARCHITECTURES.to_vec(),
    };
    let mut command = Command::new(compiler);
    command.args(["-fatbin", "-O3", "-std=c++17", "--compress-mode=size"]);
    for architecture in &architectures {
        command.arg(format!("-gencode=arch=compute_{architecture},code=sm_{architecture}"));
    }
    let first = architectures.first().expect("at least one architecture");
    let later = if architectures.contains(&LATER) { LATER } else { first };
    command.arg(format!("-gencode=arch=compute_{later},code=compute_{later}"));
    command.arg("-o").arg(image).arg(source);
    command
}
