//! The model of the demo, SmolLM2-135M-Instruct as GGUF Q4_1.

use std::path::PathBuf;

use hearth_engine::model::ModelSource;

/// It, opened; see [`demo_model_path`].
pub fn demo_model() -> Option<ModelSource> {
    Some(ModelSource::open(&demo_model_path()?).unwrap())
}

/// The file that `cargo xtask demo` fetches into the cache folder, or the one that `HEARTH_SMOLLM2_GGUF` names. Says so where it is
/// absent.
pub fn demo_model_path() -> Option<PathBuf> {
    let cached = || {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))?;
        Some(cache.join("hearth/models/SmolLM2-135M-Instruct/SmolLM2-135M-Instruct.Q4_1.gguf"))
    };
    let path = std::env::var_os("HEARTH_SMOLLM2_GGUF").map(PathBuf::from).or_else(cached)?;
    if path.is_file() {
        return Some(path);
    }
    #[allow(clippy::print_stderr)]
    {
        eprintln!("skipped: {} is not there; `cargo xtask demo` fetches it", path.display());
    }
    None
}
