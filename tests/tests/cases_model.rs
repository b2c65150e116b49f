//! Cases from public bug reports about model folders: what loads, what is refused, and what the refusal names.
//!
//! They lie in `shared/cases` beside the repository; where they are absent each test says so and passes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use candle_core::Device;
use hearth_engine::config::{Settings, Target};
use hearth_engine::data::Batch;
use hearth_engine::error::Explain;
use hearth_engine::model::safetensors::Header;
use hearth_engine::model::{Adapter, Error, Model, ModelSource, TokenizerBundle};
use hearth_engine::step::Trainer;

/// Folders that load, with the mean next-token loss (natural log, f32, unquantised base, no adapter) of the text of
/// their case's `probe.jsonl`, which has no BOS. A wrong reading of the configuration gives a much larger one.
struct Loss {
    folder: &'static str,
    probe: &'static str,
    /// The text alone.
    loss: f64,
    /// The text followed by EOS.
    loss_with_eos: f64,
    tolerance: f64,
}

const LOSSES: [Loss; 7] = [
    loss("m01-tied-embeddings-four-ways", "m01-tied-embeddings-four-ways/tied-no-lm-head", 0.0049, 0.0049),
    loss("m01-tied-embeddings-four-ways", "m01-tied-embeddings-four-ways/tied-with-equal-lm-head", 0.0049, 0.0049),
    loss("m01-tied-embeddings-four-ways", "m01-tied-embeddings-four-ways/tied-with-other-lm-head", 0.0049, 0.0049),
    loss("m04-head-dim-not-hidden-over-heads", "m04-head-dim-not-hidden-over-heads/mistral-style", 0.0032, 0.0032),
    loss("w06-index-names-a-missing-shard", "w06-index-names-a-missing-shard/stale-extra-shards", 0.0049, 0.0049),
    loss("w06-index-names-a-missing-shard", "w06-index-names-a-missing-shard/no-index-two-shards", 0.0049, 0.0049),
    loss("a02-adapter-config-of-newer-peft", "a02-adapter-config-of-newer-peft/base", 0.0049, 0.0049),
];

const fn loss(probe: &'static str, folder: &'static str, loss: f64, loss_with_eos: f64) -> Loss {
    Loss { folder, probe, loss, loss_with_eos, tolerance: 0.05 }
}

/// Mean loss of the first micro-batch of a run: a fresh adapter changes nothing.
fn first_loss(source: &ModelSource, ids: &[u32]) -> f64 {
    let settings = Settings::default();
    let model = Model::load(source, &settings.lora, (&settings).into(), &Device::Cpu).unwrap();
    let adapter = Adapter::new(source.shape(), &settings.lora, 0, &Device::Cpu).unwrap();
    let mut trainer = Trainer::new(model, adapter, &settings).unwrap();
    let batch = Batch::from_documents([(ids, &vec![true; ids.len()][..])]);
    trainer.micro_batch(&batch, batch.n_supervised(), 0).unwrap() / batch.n_supervised() as f64
}

/// The cases' folder, or a sentence why there is none.
fn cases() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/cases");
    if path.is_dir() {
        return Some(path);
    }
    #[allow(clippy::print_stderr)]
    {
        eprintln!("skipped: the cases are not at {}", path.display());
    }
    None
}

fn refused(path: &Path) -> Error {
    match ModelSource::open(path) {
        Ok(source) => panic!("{} was accepted with the notes {:?}", path.display(), source.notes()),
        Err(error) => {
            assert!(error.next_step().len() > 20, "{error}: no next step");
            error
        }
    }
}

#[track_caller]
fn says(error: &Error, parts: &[&str]) {
    let message = error.to_string();
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
}

#[test]
fn folders_with_known_losses_train_from_that_loss() {
    let Some(cases) = cases() else { return };
    for Loss { folder, probe, loss, loss_with_eos, tolerance } in &LOSSES {
        let source = ModelSource::open(&cases.join(folder)).unwrap();
        let text = std::fs::read_to_string(cases.join(probe).join("probe.jsonl")).unwrap();
        let row: serde_json::Value = serde_json::from_str(&text).unwrap();
        let mut ids: Vec<u32> = row["text"].as_str().unwrap().bytes().map(u32::from).collect();
        for (ends, expected) in [(false, loss), (true, loss_with_eos)] {
            ids.extend(ends.then_some(256));
            let got = first_loss(&source, &ids);
            assert!((got - expected).abs() < *tolerance, "{folder}: loss {got}, expected {expected}");
        }
        assert!(loss.max(*loss_with_eos) < *tolerance, "{folder}: the tolerance would accept anything");
        for name in source.tensor_names() {
            let (shape, values) = source.tensor_f32(&name).unwrap();
            assert_eq!(shape.iter().product::<usize>(), values.len(), "{folder}: {name}");
            assert!(values.iter().all(|v| v.is_finite()), "{folder}: {name}");
        }
        let bundle = source.tokenizer().unwrap();
        source.check_vocabulary(&bundle).unwrap();
        assert_eq!(bundle.eos, Some((256, "<|endoftext|>".into())), "{folder}");
    }
}

#[test]
fn m01_tied_embeddings_four_ways() {
    let Some(cases) = cases() else { return };
    let case = cases.join("m01-tied-embeddings-four-ways");
    let bare = ModelSource::open(&case.join("tied-no-lm-head")).unwrap();
    assert!(bare.shape().tied);
    assert!(bare.notes().is_empty(), "{:?}", bare.notes());
    for folder in ["tied-with-equal-lm-head", "tied-with-other-lm-head"] {
        let source = ModelSource::open(&case.join(folder)).unwrap();
        assert!(source.shape().tied, "{folder}");
        assert!(source.notes().iter().any(|note| note.contains("lm_head.weight")), "{folder}: {:?}", source.notes());
        assert_eq!(
            source.tensor_f32("model.embed_tokens.weight").unwrap(),
            bare.tensor_f32("model.embed_tokens.weight").unwrap()
        );
    }
    let error = refused(&case.join("untied-lm-head-missing"));
    says(&error, &["lm_head.weight", "tie_word_embeddings=false"]);
    assert_eq!(error.code(), "model.missing_tensor");
}

#[test]
fn m04_head_dim_is_not_hidden_over_heads() {
    let Some(cases) = cases() else { return };
    let case = cases.join("m04-head-dim-not-hidden-over-heads");
    let source = ModelSource::open(&case.join("mistral-style")).unwrap();
    let shape = source.shape();
    assert_eq!((shape.family.as_str(), shape.n_heads, shape.n_kv_heads, shape.head_dim), ("mistral", 4, 2, 16));
    for (target, rows, columns) in [(Target::Q, 64, 32), (Target::K, 32, 32), (Target::V, 32, 32), (Target::O, 32, 64)]
    {
        assert_eq!(shape.linear(target), (rows, columns));
        let name = format!("model.layers.1.{}.weight", target.module());
        assert_eq!(source.tensor_f32(&name).unwrap().0, [rows, columns]);
    }
    assert_eq!(source.hf_config()["head_dim"], 16);
    // Loads once the family is supported; until then the refusal has to say which and why.
    says(&refused(&case.join("qwen3-style")), &["qwen3", "q_norm"]);
}

#[test]
fn m09_generation_config_is_noted_at_choice_and_kept() {
    let Some(cases) = cases() else { return };
    let folder = cases.join("m09-generation-config-refused-at-save/model");
    let source = ModelSource::open(&folder).unwrap();
    assert!(
        source.notes().iter().any(|n| n.contains("do_sample") && n.contains("temperature")),
        "{:?}",
        source.notes()
    );
    let kept = source.tokenizer().unwrap().generation_config.unwrap();
    assert_eq!(kept, std::fs::read_to_string(folder.join("generation_config.json")).unwrap());
}

#[test]
fn w01_git_lfs_pointer_is_named_with_its_real_size() {
    let Some(cases) = cases() else { return };
    let error = refused(&cases.join("w01-git-lfs-pointers/model"));
    says(&error, &["model-00002-of-00002.safetensors", "Git LFS pointer", "135", "4943274328"]);
    assert!(!error.to_string().contains("model-00001"), "{error}");
    assert_eq!(error.code(), "model.lfs_pointer");
}

#[test]
fn w03_safetensors_offsets() {
    let Some(cases) = cases() else { return };
    let files = cases.join("w03-safetensors-offsets/files");
    let names_of = |file: &str| -> BTreeSet<String> {
        Header::read(&files.join(file)).unwrap().entries().iter().map(|e| e.name.clone()).collect()
    };
    assert_eq!(names_of("unordered-but-good.safetensors"), ["b", "w"].map(String::from).into());
    assert_eq!(names_of("zero-size-but-good.safetensors"), ["e", "w"].map(String::from).into());
    let mut n_refused = 0;
    for (file, parts) in [
        ("duplicate-name", &["`w`", "twice"][..]),
        ("gap", &["`b`", "16 bytes before it"]),
        ("overlap", &["overlap", "`w`", "`b`"]),
        ("past-end", &["`b`", "64 to 400"]),
        ("reversed", &["`w`", "64 to 0"]),
        ("same-range", &["overlap", "`w`", "`b`"]),
        ("shape-overflow", &["`w`", "4611686018427387904"]),
        ("shape-too-big", &["`w`", "4000000"]),
        ("trailing-bytes", &["last 8 bytes"]),
        ("unknown-dtype", &["`w`", "Q9"]),
    ] {
        let file = format!("{file}.safetensors");
        let error = Header::read(&files.join(&file)).unwrap_err();
        says(&error, &[&file[..]]);
        says(&error, parts);
        n_refused += 1;
    }
    assert_eq!(n_refused, std::fs::read_dir(&files).unwrap().count() - 2);
}

#[test]
fn w06_index_and_shards_have_to_agree() {
    let Some(cases) = cases() else { return };
    let case = cases.join("w06-index-names-a-missing-shard");
    let error = refused(&case.join("missing-shard"));
    says(&error, &["model-00002-of-00002.safetensors", "9 tensors"]);
    let error = refused(&case.join("shard-lacks-a-tensor"));
    says(&error, &["model.layers.1.mlp.up_proj.weight", "model-00002-of-00002.safetensors"]);
    says(&refused(&case.join("index-points-outside")), &["model.safetensors.index.json", ".."]);
    let stale = ModelSource::open(&case.join("stale-extra-shards")).unwrap();
    assert!(stale.notes().iter().any(|n| n.contains("model-00003-of-00003.safetensors")), "{:?}", stale.notes());
    let no_index = ModelSource::open(&case.join("no-index-two-shards")).unwrap();
    assert!(no_index.notes().iter().any(|n| n.contains("model.safetensors.index.json")), "{:?}", no_index.notes());
    assert_eq!(stale.fingerprint().unwrap(), no_index.fingerprint().unwrap());
}

#[test]
fn k01_tokens_past_the_embedding_are_named() {
    let Some(cases) = cases() else { return };
    let case = cases.join("k01-added-tokens-past-embedding");
    let few = ModelSource::open(&case.join("too-few-rows")).unwrap();
    let error = few.check_vocabulary(&few.tokenizer().unwrap()).unwrap_err();
    says(&error, &["4 tokens", "258 rows", "<|assistant|> 258", "<|note|> 259", "<|tool|> 260", "<|pad|> 261"]);
    let spare = ModelSource::open(&case.join("spare-rows")).unwrap();
    assert_eq!(spare.shape().vocab_rows, 320);
    let bundle = spare.tokenizer().unwrap();
    assert_eq!(bundle.tokenizer.get_vocab_size(true), 262);
    spare.check_vocabulary(&bundle).unwrap();
    assert!(spare.notes().is_empty(), "{:?}", spare.notes());
}

#[test]
fn t10_special_tokens_are_read_without_weights() {
    let Some(cases) = cases() else { return };
    let folder = cases.join("t10-turn-end-is-not-eos/model");
    let bundle = TokenizerBundle::open(&folder).unwrap();
    assert_eq!(bundle.eos, Some((256, "<|endoftext|>".into())));
    assert_eq!(bundle.eos_ids, [256]);
    assert_eq!((bundle.bos.clone(), bundle.add_bos), (None, false));
    let template = bundle.chat_template.as_deref().unwrap();
    assert!(template.contains("<|im_end|>"), "{template}");
    assert_eq!(bundle.tokenizer.token_to_id("<|im_end|>"), Some(258));
    let error = refused(&folder);
    says(&error, &["no weights"]);
}
