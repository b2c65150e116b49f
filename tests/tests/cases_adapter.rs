//! Adapters of newer PEFT versions from public bug reports: what loads gives PEFT's loss, what is refused is named.
//!
//! They lie in `shared/cases` beside the repository; where they are absent each test says so and passes.

use std::path::{Path, PathBuf};

use candle_core::Device;
use hearth_engine::config::BaseFormat;
use hearth_engine::export::{Error, read_adapter};
use hearth_engine::generate::Generator;
use hearth_engine::model::weights::Precision;
use hearth_engine::model::{Model, ModelSource};

fn case() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/cases/a02-adapter-config-of-newer-peft");
    if path.is_dir() {
        return Some(path);
    }
    #[allow(clippy::print_stderr)]
    {
        eprintln!("skipped: the case is not at {}", path.display());
    }
    None
}

/// Mean next-token loss of the probe's text, one byte a token.
fn loss(case: &Path, adapter: &str) -> Result<f64, Error> {
    let source = ModelSource::open(&case.join("base"))?;
    let adapter = read_adapter(&case.join(adapter), source.shape(), &Device::Cpu)?;
    let model = Model::load(&source, adapter.lora(), Precision::f32(BaseFormat::F32), &Device::Cpu)?;
    let probe: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(case.join("probe.jsonl")).expect("the probe is there"))
            .expect("one line of JSON");
    let ids: Vec<u32> = probe["text"].as_str().expect("text").bytes().map(u32::from).collect();
    let logits = Generator::new(&model, Some(&adapter))?.logits(&ids)?;
    let rows = logits.chunks_exact(source.shape().vocab_rows).zip(&ids[1..]);
    let nll: f64 = rows
        .map(|(row, &next)| {
            let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
            sum.ln() - f64::from(row[next as usize])
        })
        .sum();
    Ok(nll / (ids.len() - 1) as f64)
}

#[test]
fn settings_that_are_understood_give_the_loss_of_peft() {
    let Some(case) = case() else { return };
    for (adapter, peft) in [("harmless-extras", 6.1412), ("rslora", 7.0637), ("alpha-pattern", 6.7)] {
        let loss = loss(&case, adapter).unwrap_or_else(|e| panic!("{adapter}: {e}"));
        assert!((loss - peft).abs() < 0.01, "{adapter}: loss {loss}, peft {peft}");
    }
}

#[test]
fn settings_that_are_not_computed_are_refused_by_name() {
    let Some(case) = case() else { return };
    for (adapter, named) in [("dora", "DoRA"), ("meaningful-unknown", "brand_new_option")] {
        match loss(&case, adapter) {
            Ok(loss) => panic!("{adapter} was accepted with the loss {loss}"),
            Err(error) => assert!(error.to_string().contains(named), "{adapter}: {error}"),
        }
    }
}
