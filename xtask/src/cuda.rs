//! `cargo xtask cuda`: the pinned CUDA toolkit under the target folder, and `hearth-cuda` built with it.
//!
//! nvcc comes from NVIDIA's packages on PyPI. The engine names the CUDA libraries as needed ones; only their names are needed to link, so
//! stand-ins with the same symbols are made and the half gigabyte of the real ones stays with those who have a card. The products of
//! quantised weights that candle brings and Hearth never calls are most of what there is to compile: they have stand-ins too.

use std::{
    collections::BTreeSet,
    env::consts::EXE_SUFFIX,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{
    process::{self, cargo},
    repository, setup,
};

/// The compiler, its headers and the runtime that is linked statically.
const TOOLKIT: [&str; 5] = [
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
];
/// What cudarc calls the toolkit's version.
const CUDARC_VERSION: &str = "13000";
/// candle's own kernels are compiled for this architecture; Hearth's are for all. A run loads none of candle's, so that cards of compute
/// capability 7.5 miss none. Whether that holds, tests of whole steps under `CUDA_DISABLE_PTX_JIT=1` say: candle's can't be loaded then.
const CANDLE_ARCHITECTURE: &str = "80";
/// Libraries the engine needs at run time: name to link with, name to load, cudarc's module that declares its functions.
const LIBRARIES: [(&str, &str, &str); 5] = [
    ("cuda", "libcuda.so.1", "driver"),
    ("nvrtc", "libnvrtc.so.13", "nvrtc"),
    ("curand", "libcurand.so.10", "curand"),
    ("cublas", "libcublas.so.13", "cublas"),
    ("cublasLt", "libcublasLt.so.13", "cublaslt"),
];

/// Sets up the toolkit and builds `hearth-cuda` beside `hearth`.
pub(crate) fn cuda() -> Result<()> {
    if !is_supported() {
        println!("Left out: the pinned toolkit is for Linux on x86-64. With a CUDA 13.0 toolkit of your own:");
        println!("cargo build --package hearth-engine --features cuda");
        return Ok(());
    }
    setup::for_engine()?;
    let program = build(with_toolkit(cargo())?)?;
    println!("Built {}", program.display());
    Ok(())
}

/// Builds the engine with its kernels, so that they never rot, and runs their tests where there is a card.
pub(crate) fn test() -> Result<()> {
    if !is_supported() {
        println!("Left out: the pinned toolkit is for Linux on x86-64.");
        return Ok(());
    }
    let has_card = process::succeeds(Command::new("nvidia-smi").arg("--list-gpus"));
    if !has_card {
        println!("No graphics card here: the kernels are compiled for the oldest and the newest one and not run.");
        let mut command = with_toolkit(cargo())?;
        command.env("HEARTH_CUDA_ARCHITECTURES", "75,120");
        return build(command).map(drop);
    }
    build(with_toolkit(cargo())?)?;
    let mut tests = with_toolkit(cargo())?;
    tests.env("LD_LIBRARY_PATH", libraries()?);
    // The workspace's library tests, those of whole steps and those of whole runs: all that touches a card.
    tests.args(["test", "--workspace", setup::FEATURES[0], FEATURES, "--lib", "--test", "card", "--test", "card_runs"]);
    process::run(&mut tests)
}

/// Where the loader finds CUDA's libraries; they are fetched where this machine lacks them.
pub(crate) fn libraries() -> Result<OsString> {
    let hearth = repository::program("hearth")?;
    process::run(Command::new(&hearth).arg("setup-gpu"))?;
    let report = process::read(Command::new(&hearth).args(["setup-gpu", "--check", "--quick", "--json"]))?;
    let told = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders = folders(&report)?.into_iter().chain(std::env::split_paths(&told));
    Ok(std::env::join_paths(folders.filter(|folder| !folder.as_os_str().is_empty()))?)
}

/// Folders of all packages, from what `hearth setup-gpu --json` says.
fn folders(report: &str) -> Result<Vec<PathBuf>> {
    let report: Value = serde_json::from_str(report).context("reading what `hearth setup-gpu` printed")?;
    let packages = report["packages"].as_array().context("`hearth setup-gpu` lists no packages")?;
    Ok(packages.iter().filter_map(|package| Some(package["state"]["folder"].as_str()?.into())).collect())
}

fn is_supported() -> bool {
    cfg!(all(target_os = "linux", target_arch = "x86_64"))
}

/// Builds the engine with its kernels and returns the program, `hearth-cuda`. `command` is cargo in the toolkit's environment.
fn build(mut command: Command) -> Result<PathBuf> {
    // The same packages and features as every other build, so that nothing is compiled twice for it.
    command.args(["build", "--workspace", "--bin", "hearth"]).args([setup::FEATURES[0], FEATURES]);
    process::run(&mut command)?;
    let built = repository::program("hearth")?;
    let program = repository::programs()?.join(format!("hearth-cuda{EXE_SUFFIX}"));
    fs::copy(&built, &program).with_context(|| format!("copying {}", built.display()))?;
    check_needed(&process::read(Command::new("readelf").arg("--dynamic").arg(&program))?)?;
    restore_hearth()?;
    Ok(program)
}

/// Builds the benchmark `card` with the kernels, in the profile that everything else uses, and returns the program.
pub(crate) fn benchmark() -> Result<PathBuf> {
    ensure!(is_supported(), "the pinned CUDA toolkit is for Linux on x86-64, and so is this benchmark");
    setup::for_engine()?;
    let mut command = with_toolkit(cargo())?;
    command.args(["bench", "--profile", "dev", "--workspace", setup::FEATURES[0], FEATURES]);
    command.args(["--bench", "card", "--no-run", "--message-format", "json-render-diagnostics"]);
    println!("$ {}", process::line(&command));
    let said = process::read(&mut command)?;
    restore_hearth()?;
    let messages = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut programs = messages.filter(|message| message["target"]["name"] == "card");
    let program = programs.find_map(|message| Some(message["executable"].as_str()?.into()));
    program.context("cargo names no program for the benchmark `card`")
}

/// What is built with the kernels takes the place of `hearth`, which stays the engine that starts anywhere.
fn restore_hearth() -> Result<()> {
    process::run(cargo().args(["build", "--workspace", "--bin", "hearth"]).args(setup::FEATURES))
}

/// Refuses a program that names a library which neither the driver nor `hearth setup-gpu` brings. `dynamic` is what `readelf
/// --dynamic` says of it.
fn check_needed(dynamic: &str) -> Result<()> {
    const FETCHED: &str = include_str!("../../assets/cuda-libraries.toml");
    const SYSTEM: [&str; 8] =
        ["libcuda.so.1", "libstdc++.", "libgcc_s.", "libm.", "libc.", "ld-linux-", "libpthread.", "libdl."];
    let needed: Vec<&str> = dynamic
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| line.split_once('[')?.1.strip_suffix(']'))
        .collect();
    ensure!(!needed.is_empty(), "readelf names no library that hearth-cuda needs");
    let is_brought = |name: &&str| {
        SYSTEM.iter().any(|system| name.starts_with(system)) || FETCHED.contains(&format!("/lib/{name}\""))
    };
    let missing: Vec<&str> = needed.into_iter().filter(|name| !is_brought(name)).collect();
    ensure!(missing.is_empty(), "hearth-cuda needs {missing:?}, which assets/cuda-libraries.toml does not have");
    Ok(())
}

/// The features of [`setup::FEATURES`] with the kernels.
const FEATURES: &str = "hearth-studio/custom-protocol,hearth-engine/cuda";

/// `command` with the environment in which the kernels are compiled and linked.
fn with_toolkit(mut command: Command) -> Result<Command> {
    let folder = repository::target()?.join("cuda");
    let home = toolkit(&folder)?;
    let packages = packages()?;
    let link = stand_ins(&folder, &home, &sources(&packages, "cudarc")?)?;
    let declarations = sources(&packages, "candle-kernels")?.join("ffi.rs");
    let text = fs::read_to_string(&declarations).with_context(|| format!("reading {}", declarations.display()))?;
    let compiler = compiler_for_candle(&home.join("bin"), &functions(&text))?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let paths = std::iter::once(home.join("bin")).chain(std::env::split_paths(&path));
    command
        .env("CUDA_HOME", &home)
        // Candle's build script asks this one first; Hearth's own asks `CUDA_HOME` alone.
        .env("NVCC", compiler)
        .env("CUDARC_CUDA_VERSION", CUDARC_VERSION)
        .env("CUDA_COMPUTE_CAP", CANDLE_ARCHITECTURE)
        .env("LIBRARY_PATH", link)
        .env("PATH", std::env::join_paths(paths)?);
    Ok(command)
}

/// The pinned packages in an environment of their own; returns the toolkit's folder.
fn toolkit(folder: &Path) -> Result<PathBuf> {
    let site = folder.join("toolkit");
    let home = site.join("nvidia").join("cu13");
    let installed = folder.join("installed.txt");
    let wanted = TOOLKIT.join("\n");
    if home.join("bin/nvcc").exists() && fs::read_to_string(&installed).is_ok_and(|is| is == wanted) {
        return Ok(home);
    }
    println!("Fetching the CUDA compiler from PyPI into {} (about 110 MB, once).", folder.display());
    let _ = fs::remove_dir_all(&site);
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let flags = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target"];
    process::run(setup::pip()?.args(flags).arg(&site).args(TOOLKIT))?;
    for name in ["nvcc", "cudafe++", "ptxas", "fatbinary", "nvlink", "bin2c"] {
        make_executable(&home.join("bin").join(name))?;
    }
    make_executable(&home.join("nvvm/bin/cicc"))?;
    ensure!(
        process::succeeds(Command::new(home.join("bin/nvcc")).arg("--version")),
        "the packages were installed and {} does not start",
        home.join("bin/nvcc").display()
    );
    fs::write(&installed, wanted).with_context(|| format!("writing {}", installed.display()))?;
    Ok(home)
}

/// `pip --target` leaves files as they are in the wheel, in some versions without their permissions.
fn make_executable(path: &Path) -> Result<()> {
    #[cfg(unix)]
    if path.exists() {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))
            .with_context(|| format!("making {} executable", path.display()))?;
    }
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}

/// Libraries with the functions that cudarc declares and nothing in them, to link with.
fn stand_ins(folder: &Path, home: &Path, sources: &Path) -> Result<PathBuf> {
    let link = folder.join("link");
    fs::create_dir_all(&link).with_context(|| format!("making {}", link.display()))?;
    for (name, soname, module) in LIBRARIES {
        let library = link.join(format!("lib{name}.so"));
        let declarations = sources.join(module).join("sys").join("mod.rs");
        let text = fs::read_to_string(&declarations).with_context(|| format!("reading {}", declarations.display()))?;
        let is_cuda = |name: &&str| name.starts_with("cu") || name.starts_with("nvrtc");
        let code: String =
            functions(&text).into_iter().filter(is_cuda).map(|name| format!("void {name}(void) {{}}\n")).collect();
        ensure!(!code.is_empty(), "{} declares no functions", declarations.display());
        let source = link.join(format!("{name}.c"));
        // By content: what cargo unpacks is dated years back, whatever its version.
        if library.exists() && fs::read_to_string(&source).is_ok_and(|made| made == code) {
            continue;
        }
        // Else a compiler that fails would leave an old library beside a new source.
        let _ = fs::remove_file(&library);
        fs::write(&source, code).with_context(|| format!("writing {}", source.display()))?;
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-w"]).arg(format!("-Wl,-soname,{soname}")).arg("-o").arg(&library).arg(&source);
        process::run(&mut cc)?;
    }
    // The runtime is small: it is linked in.
    let runtime = home.join("lib").join("libcudart_static.a");
    let script = format!("INPUT({} -lrt -ldl -lpthread)\n", runtime.display());
    fs::write(link.join("libcudart.so"), script).context("writing the linker's script for the CUDA runtime")?;
    Ok(link)
}

/// nvcc for candle's kernels, in the toolkit's folder `bin`: from its parent the build script takes where the headers are.
///
/// Candle compiles its products of quantised weights and of experts into `libmoe.a`, which takes longer than all its other kernels
/// together, and declares `functions` for them. The sources of that library are not looked at: in place of each comes an object with
/// these functions, of which the linker takes the first. One that is called all the same ends the program and says which it was.
fn compiler_for_candle(bin: &Path, functions: &BTreeSet<&str>) -> Result<PathBuf> {
    ensure!(!functions.is_empty(), "candle-kernels declares no functions");
    let body = |name: &&str| format!("void {name}(void) {{ stop(\"{name}\"); }}\n");
    let code = STOP.to_string() + &functions.iter().map(body).collect::<String>();
    let source = bin.join("left-out.c");
    fs::write(&source, code).with_context(|| format!("writing {}", source.display()))?;
    let compiler = bin.join("nvcc-for-candle");
    fs::write(&compiler, NVCC_FOR_CANDLE).with_context(|| format!("writing {}", compiler.display()))?;
    make_executable(&compiler)?;
    Ok(compiler)
}

/// Ends the program: memory that a product did not write would go on as if it had.
const STOP: &str = r#"#include <stdio.h>
#include <stdlib.h>
static void stop(const char* name) {
    fprintf(stderr, "%s of candle-kernels was left out of this program by `cargo xtask cuda`, and is called\n", name);
    abort();
}
"#;

/// Compiles `left-out.c` in place of a source of `libmoe.a`, and is nvcc for everything else.
const NVCC_FOR_CANDLE: &str = r#"#!/bin/sh
bin=$(dirname "$0")
is_left_out= output= before=
for argument; do
    case $argument in
        */moe_*.cu | */mmq_*.cu | */mmvq_*.cu) is_left_out=yes ;;
    esac
    if [ "$before" = -o ]; then output=$argument; fi
    before=$argument
done
if [ "$is_left_out" ]; then exec cc -c -fPIC -w -o "$output" "$bin/left-out.c"; fi
exec "$bin/nvcc" "$@"
"#;

/// What cargo says of all packages that are built.
fn packages() -> Result<Value> {
    let said = process::read(cargo().args(["metadata", "--format-version", "1", "--features", FEATURES]))?;
    let mut metadata: Value = serde_json::from_str(&said).context("reading what `cargo metadata` printed")?;
    Ok(metadata["packages"].take())
}

/// Where cargo keeps the sources of a package, whose declarations say which functions there are.
fn sources(packages: &Value, name: &str) -> Result<PathBuf> {
    let packages = packages.as_array().context("cargo lists no packages")?;
    let package = packages.iter().find(|package| package["name"] == name);
    let package = package.with_context(|| format!("{name} is not a dependency"))?;
    let manifest = package["manifest_path"].as_str().with_context(|| format!("{name} has no manifest"))?;
    Ok(Path::new(manifest).parent().context("the manifest has no folder")?.join("src"))
}

/// Names of all functions that a file declares.
fn functions(declarations: &str) -> BTreeSet<&str> {
    declarations
        .split("fn ")
        .skip(1)
        .filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next())
        .filter(|name| !name.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_nobody_brings_is_refused() {
        let line = |name: &str| format!(" 0x0000000000000001 (NEEDED)             Shared library: [{name}]\n");
        let brought: String =
            ["libcuda.so.1", "libcublas.so.13", "libcublasLt.so.13", "libcurand.so.10", "libc.so.6"].map(line).concat();
        check_needed(&brought).expect("all are brought");
        let error = check_needed(&(brought + &line("libnvrtc.so.13"))).expect_err("refused");
        assert!(error.to_string().contains("libnvrtc.so.13"), "{error}");
        assert!(check_needed("").is_err());
    }

    #[test]
    fn the_loader_is_told_of_every_folder_with_libraries() {
        let state = |kind: &str, folder: &str| format!(r#"{{"state": {{"kind": "{kind}", "folder": "{folder}"}}}}"#);
        let (fetched, installed) = (state("fetched", "/home/a/cuda"), state("installed", "/usr/lib"));
        let report = format!(r#"{{"packages": [{fetched}, {installed}, {{"state": {{"kind": "missing"}}}}]}}"#);
        assert_eq!(folders(&report).unwrap(), [PathBuf::from("/home/a/cuda"), "/usr/lib".into()]);
    }

    #[test]
    fn functions_are_read_from_declarations_of_any_layout() {
        let text =
            "pub fn cuInit(flags: u32) -> i32;\n    pub unsafe fn\u{20}cublasCreate_v2 (handle: *mut h);\nfn other();";
        assert_eq!(functions(text).into_iter().collect::<Vec<_>>(), ["cuInit", "cublasCreate_v2", "other"]);
    }

    /// The sources of candle's library become its functions without anything in them; what is called all the same is named before the
    /// program ends. All other sources are nvcc's.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_function_that_was_left_out_ends_the_program_with_its_name() {
        let bin = std::env::temp_dir().join(format!("hearth left out {}", std::process::id()));
        fs::create_dir_all(&bin).unwrap();
        let write = |name: &str, text: &str| {
            fs::write(bin.join(name), text).unwrap();
            bin.join(name)
        };
        make_executable(&write("nvcc", "#!/bin/sh\necho \"$@\"\n")).unwrap();
        let compiler = compiler_for_candle(&bin, &BTreeSet::from(["launch_a", "launch_b"])).unwrap();
        let object = |name: &str| bin.join(name).into_os_string();
        for (name, source) in [("a.o", "src/moe/moe_gguf.cu"), ("b.o", "src/mmvq_gguf.cu")] {
            let said = Command::new(&compiler).arg("-c").arg("-o").arg(object(name)).arg(source).output().unwrap();
            assert!(said.status.success() && said.stdout.is_empty(), "{said:?}");
        }
        let said = Command::new(&compiler).args(["--ptx", "src/reduce.cu"]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&said.stdout), "--ptx src/reduce.cu\n");

        let (program, library) = (bin.join("program"), bin.join("libmoe.a"));
        process::run(Command::new("ar").arg("crs").arg(&library).args([object("a.o"), object("b.o")])).unwrap();
        let main =
            "void launch_a(void), launch_b(void);\nint main(int n, char** a) { n > 1 ? launch_b() : launch_a(); }\n";
        let main = write("main.c", main);
        let mut cc = Command::new("cc");
        process::run(cc.arg("-o").arg(&program).arg(main).arg(&library)).unwrap();
        let said = Command::new(&program).output().unwrap();
        fs::remove_dir_all(&bin).unwrap();
        assert!(!said.status.success() && said.stderr.starts_with(b"launch_a of candle-kernels"), "{said:?}");
    }
}
