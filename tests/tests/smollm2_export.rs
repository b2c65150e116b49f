//! Exports of the demo's model, SmolLM2-135M-Instruct from its GGUF, in every format, with their proofs.
//!
//! Where the file is absent (see `demo_model`) the test says so and passes.

use std::path::{Path, PathBuf};

use candle_core::Device;
use hearth_engine::config::{BaseFormat, LoraConfig, Target};
use hearth_engine::export::{
    ExportDtype, MergeOptions, PROOF, Proof, ProofPrompt, Witness, prove_adapter, prove_merged, write_adapter,
    write_merged,
};
use hearth_engine::model::weights::Precision;
use hearth_engine::model::{Adapter, Model, ModelSource};
use hearth_tests::demo_model::demo_model;

/// An adapter as after some training: changes of about one percent of every weight, no two alike.
fn adapter(model: &Model, lora: &LoraConfig) -> Adapter {
    let mut adapter = Adapter::new(&model.shape, lora, 7, &Device::Cpu).unwrap();
    let mut state = 1u64;
    for (layer, target) in adapter.names().collect::<Vec<_>>() {
        let (a, mut b) = (adapter.a(layer, target).unwrap(), adapter.b(layer, target).unwrap());
        for x in &mut b {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *x = ((state >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 0.012;
        }
        adapter.set(layer, target, &a, &b).unwrap();
    }
    adapter
}

fn prompts(source: &ModelSource) -> Vec<ProofPrompt> {
    let tokenizer = source.tokenizer().unwrap().tokenizer;
    ["The capital of France is", "Write one sentence about the sea.", "What is 7 times 6?", "名前は何ですか 🦙"]
        .iter()
        .map(|question| {
            let text = format!("<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n");
            let input_ids = tokenizer.encode_fast(text.as_str(), false).unwrap().get_ids().to_vec();
            ProofPrompt { text, input_ids }
        })
        .collect()
}

fn assert_proven(proof: &Proof, what: &str) {
    assert!(proof.is_proven(), "{what}: {proof:#?}");
}

#[test]
fn every_export_of_the_demo_model_is_proven() {
    let Some(source) = demo_model() else { return };
    let disk = tempfile::tempdir().unwrap();
    // Kept for another program to look at, where somebody asks for it.
    let kept = std::env::var_os("HEARTH_KEEP_EXPORTS").map(PathBuf::from);
    let folder = kept.as_deref().unwrap_or(disk.path());
    let lora = LoraConfig { rank: 8, alpha: 16.0, dropout: 0.0, targets: Target::ALL.to_vec() };
    let (bundle, stop_ids, prompts) = (source.tokenizer().unwrap(), vec![2], prompts(&source));
    for base in [BaseFormat::F32, BaseFormat::Nf4] {
        let model = Model::load(&source, &lora, Precision::f32(base), &Device::Cpu).unwrap();
        let adapter = adapter(&model, &lora);
        let witness = Witness::record(&model, &adapter, &prompts, 12, &stop_ids).unwrap();

        let out = folder.join(format!("adapter-{base:?}"));
        write_adapter(&source, &adapter, &bundle, &out).unwrap();
        let proof = prove_adapter(&source, &model, &adapter, &bundle, &witness, &out).unwrap();
        assert_proven(&proof, "adapter");
        proof.save(&out).unwrap();
        drop(model);

        let formats: &[Option<ExportDtype>] = match base {
            BaseFormat::F32 | BaseFormat::Half => &[None, Some(ExportDtype::Bf16)],
            BaseFormat::Nf4 => &[None],
        };
        for &dtype in formats {
            let max_shard_bytes = if dtype.is_none() { 100_000_000 } else { 5_000_000_000 };
            let options = MergeOptions { dtype, base, stop_ids: stop_ids.clone(), max_shard_bytes };
            let name = dtype.map_or("auto", ExportDtype::name);
            let out = folder.join(format!("merged-{base:?}-{name}"));
            let written = write_merged(&source, &adapter, &bundle, &options, &out, &mut |_, _| {}).unwrap();
            assert_eq!(written.dtype, dtype.unwrap_or(ExportDtype::F16));
            let device = &Device::Cpu;
            let proof =
                prove_merged(&source, &adapter, &bundle, &witness, &options, &written, device, &mut |_, _| {}).unwrap();
            assert_proven(&proof, name);
            proof.save(&out).unwrap();
            assert!(Path::new(&out).join(PROOF).is_file());
        }
    }
}
