use std::fs;

use candle_core::Tensor;

use super::draft::{compare, percent, short};
use super::*;
use crate::config::Target;
use crate::export::tests::{Tuned, copy_folder, edit};
use crate::export::{ProofPrompt, witness, write_adapter};

const STOP: [u32; 1] = [2];

fn prompts() -> Vec<ProofPrompt> {
    let prompt = |text: &str, input_ids: Vec<u32>| ProofPrompt { text: text.into(), input_ids };
    vec![
        prompt("the cat sat on the mat 🦙", (30..60).collect()),
        prompt("<|im_start|>user\nwhat is the answer?<|im_end|>\n", vec![1, 90, 200, 17, 2, 5]),
        prompt("名前", vec![7]),
    ]
}

impl Tuned {
    fn witness(&self) -> Witness {
        Witness::record(&self.model, &self.adapter, &prompts(), 12, &STOP).unwrap()
    }

    fn prove(&self, options: &MergeOptions, written: &Written) -> Proof {
        let device = &Device::Cpu;
        let (source, adapter, bundle) = (&self.source, &self.adapter, &self.bundle);
        prove_merged(source, adapter, bundle, &self.witness(), options, written, device, &mut |_, _| {}).unwrap()
    }
}

fn options(base: BaseFormat, dtype: Option<ExportDtype>) -> MergeOptions {
    MergeOptions { base, dtype, stop_ids: STOP.to_vec(), max_shard_bytes: 60_000 }
}

fn failed(proof: &Proof) -> Vec<&str> {
    proof.checks.iter().filter(|c| !c.ok).map(|c| c.code.as_str()).collect()
}

#[test]
fn merged_exports_are_proven_in_every_format_from_every_base() {
    let disk = tempfile::tempdir().unwrap();
    for name in ["tiny-tied", "tiny-llama3"] {
        for base in [BaseFormat::F32, BaseFormat::Nf4] {
            let tuned = Tuned::new(name, base);
            for dtype in [None, Some(ExportDtype::F32), Some(ExportDtype::F16), Some(ExportDtype::Bf16)] {
                let options = options(base, dtype);
                let written = tuned.merge(&options, &disk.path().join(format!("{name} {base:?} {dtype:?}"))).unwrap();
                let proof = tuned.prove(&options, &written);
                assert!(proof.is_proven(), "{name} {base:?} {dtype:?}: {proof:#?}");
                let m = &proof.measured;
                assert_eq!(m.layers.len(), 14);
                assert!(m.layers.iter().all(|l| l.change > 0.0));
                assert!(m.base_max_abs_difference.unwrap() > 0.1);
                assert_eq!(m.n_logit_rows, 37 + m.answers.iter().map(|a| a.n_tokens).sum::<usize>());
                // The limits are near what is measured, or they would prove nothing.
                let limit = 16.0 * m.sigma;
                let slack = limit / m.max_abs_difference.unwrap();
                let near = if written.dtype == ExportDtype::F32 { limit < 2e-3 } else { slack < 20.0 };
                assert!(near, "{name} {base:?} {dtype:?}: limit {limit} is {slack} times the difference");
            }
        }
    }
}

#[test]
fn an_adapter_export_is_proven_and_the_model_stays_as_it_was() {
    let disk = tempfile::tempdir().unwrap();
    for base in [BaseFormat::F32, BaseFormat::Nf4] {
        let tuned = Tuned::new("tiny-llama3", base);
        let out = disk.path().join(format!("{base:?}"));
        write_adapter(&tuned.source, &tuned.adapter, &tuned.bundle, &out).unwrap();
        let witness = tuned.witness();
        let prove =
            || prove_adapter(&tuned.source, &tuned.model, &tuned.adapter, &tuned.bundle, &witness, &out).unwrap();
        let proof = prove();
        assert_eq!(proof.verdict, Verdict::Proven, "{proof:#?}");
        assert_eq!(proof.measured.max_abs_difference, Some(0.0));
        assert_eq!(prove(), proof);
        proof.save(&out).unwrap();
        let read: Proof = serde_json::from_slice(&fs::read(out.join(PROOF)).unwrap()).unwrap();
        assert_eq!(read, proof);
    }
}

/// A merged export in shards, damaged by `damage`, and its proof.
fn damaged(damage: impl FnOnce(&Path)) -> Proof {
    let disk = tempfile::tempdir().unwrap();
    let tuned = Tuned::new("tiny-llama3", BaseFormat::F32);
    let options = options(BaseFormat::F32, None);
    let written = tuned.merge(&options, &disk.path().join("out")).unwrap();
    damage(&written.path);
    tuned.prove(&options, &written)
}

/// Changes one tensor, wherever it is.
fn change_tensor(folder: &Path, name: &str, f: impl Fn(&Tensor) -> Tensor) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "safetensors") {
            continue;
        }
        let mut tensors = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
        if let Some(tensor) = tensors.get_mut(name) {
            *tensor = f(tensor).contiguous().unwrap();
            candle_core::safetensors::save(&tensors, path).unwrap();
        }
    }
}

#[test]
fn a_flipped_tensor_is_not_proven() {
    let name = "model.layers.1.mlp.up_proj.weight";
    let proof = damaged(|folder| change_tensor(folder, name, |t| t.flip(&[0]).unwrap()));
    assert_eq!(proof.verdict, Verdict::NotProven);
    assert!(failed(&proof).contains(&"weights") && failed(&proof).contains(&"logits"), "{proof:#?}");
    assert_eq!(proof.measured.wrong_tensors.len(), 1);
    assert!(proof.measured.wrong_tensors[0].starts_with(name));
}

#[test]
fn one_wrong_bit_is_not_proven() {
    let name = "model.layers.0.self_attn.k_proj.weight";
    let proof = damaged(|folder| {
        change_tensor(folder, name, |t| {
            let mut values = t.flatten_all().unwrap().to_vec1::<half::bf16>().unwrap();
            values[5] = half::bf16::from_bits(values[5].to_bits() ^ 1);
            Tensor::from_vec(values, t.dims(), &Device::Cpu).unwrap()
        });
    });
    assert_eq!(failed(&proof), ["weights"]);
    assert_eq!(proof.verdict, Verdict::NotProven);
}

#[test]
fn two_swapped_shards_are_not_proven() {
    let proof = damaged(|folder| {
        let shards = ["model-00001-of-", "model-00002-of-"].map(|beginning| {
            let mut entries = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
            entries.find(|p| p.file_name().unwrap().to_str().unwrap().starts_with(beginning)).unwrap()
        });
        let aside = folder.join("aside");
        fs::rename(&shards[0], &aside).unwrap();
        fs::rename(&shards[1], &shards[0]).unwrap();
        fs::rename(&aside, &shards[1]).unwrap();
    });
    assert_eq!((proof.verdict, failed(&proof)), (Verdict::NotProven, vec!["loads"]));
}

#[test]
fn swapped_layers_are_not_proven() {
    // The same sizes under the wrong names load without a complaint.
    let proof = damaged(|folder| {
        let name = |layer| format!("model.layers.{layer}.self_attn.v_proj.weight");
        let export = ModelSource::open(folder).unwrap();
        let [zero, one] = [0, 1].map(|layer| {
            let (shape, values) = export.tensor_f32(&name(layer)).unwrap();
            Tensor::from_vec(values, shape, &Device::Cpu).unwrap().to_dtype(candle_core::DType::BF16).unwrap()
        });
        change_tensor(folder, &name(0), |_| one.clone());
        change_tensor(folder, &name(1), |_| zero.clone());
    });
    assert_eq!(proof.verdict, Verdict::NotProven);
    assert_eq!(proof.measured.wrong_tensors.len(), 2);
}

#[test]
fn a_truncated_shard_and_a_missing_one_are_not_proven() {
    for truncate in [true, false] {
        let proof = damaged(|folder| {
            let mut entries = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
            let shard = entries.find(|p| p.extension().is_some_and(|e| e == "safetensors")).unwrap();
            if truncate {
                let bytes = fs::read(&shard).unwrap();
                fs::write(&shard, &bytes[..bytes.len() - 10]).unwrap();
            } else {
                fs::remove_file(shard).unwrap();
            }
        });
        assert_eq!((proof.verdict, failed(&proof)), (Verdict::NotProven, vec!["loads"]));
    }
}

#[test]
fn weights_without_the_change_are_not_proven() {
    let disk = tempfile::tempdir().unwrap();
    let tuned = Tuned::new("tiny-tied", BaseFormat::F32);
    let mut untrained = Tuned::new("tiny-tied", BaseFormat::F32);
    untrained.adapter = Adapter::new(&tuned.model.shape, tuned.adapter.lora(), 1, &Device::Cpu).unwrap();
    // The base itself in place of the merged model.
    let options = options(BaseFormat::F32, Some(ExportDtype::F32));
    let written = untrained.merge(&options, &disk.path().join("base")).unwrap();
    let proof = tuned.prove(&options, &written);
    assert_eq!(proof.verdict, Verdict::NotProven);
    for code in ["weights", "change", "logits", "divergence"] {
        assert!(failed(&proof).contains(&code), "{code}: {proof:#?}");
    }
    assert!(proof.measured.layers.iter().all(|l| l.change == 0.0));
    // A run that learned nothing, exported faithfully: nothing to prove either.
    let proof = untrained.prove(&options, &written);
    assert_eq!((proof.verdict, failed(&proof)), (Verdict::NotProven, vec!["change", "tuned"]));
}

#[test]
fn other_text_files_are_not_proven() {
    for (file, keys, named) in [
        ("tokenizer_config.json", serde_json::json!({"chat_template": "{{ 1 }}"}), "chat template"),
        ("tokenizer_config.json", serde_json::json!({"eos_token": "<|endoftext|>"}), "special tokens"),
    ] {
        let proof = damaged(|folder| edit(&folder.join(file), &keys));
        assert_eq!(failed(&proof), ["tokenizer"], "{proof:#?}");
        assert!(proof.checks.iter().any(|c| c.value.contains(named)), "{proof:#?}");
    }
    let proof = damaged(|folder| {
        let path = folder.join("tokenizer.json");
        let text = fs::read_to_string(&path).unwrap();
        // The first merge is gone: words that had it are cut elsewhere.
        let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
        value["model"]["merges"].as_array_mut().unwrap().remove(0);
        fs::write(path, value.to_string()).unwrap();
    });
    assert_eq!(failed(&proof), ["tokenizer"], "{proof:#?}");
}

#[test]
fn an_adapter_with_another_scale_or_other_values_is_not_proven() {
    let disk = tempfile::tempdir().unwrap();
    let tuned = Tuned::new("tiny-tied", BaseFormat::F32);
    let good = disk.path().join("good");
    write_adapter(&tuned.source, &tuned.adapter, &tuned.bundle, &good).unwrap();
    let prove = |name: &str, damage: &dyn Fn(&Path)| {
        let folder = disk.path().join(name);
        copy_folder(&good, &folder);
        damage(&folder);
        let witness = tuned.witness();
        prove_adapter(&tuned.source, &tuned.model, &tuned.adapter, &tuned.bundle, &witness, &folder).unwrap()
    };
    let scale = prove("scale", &|f| edit(&f.join("adapter_config.json"), &serde_json::json!({"lora_alpha": 16})));
    assert!(failed(&scale).contains(&"weights") && failed(&scale).contains(&"logits"), "{scale:#?}");
    let b = crate::export::adapter::names(1, Target::O)[1].clone();
    let zeroed = prove("zeroed", &|f| change_tensor(f, &b, |t| t.zeros_like().unwrap()));
    assert!(failed(&zeroed).contains(&"weights"), "{zeroed:#?}");
    assert_eq!(zeroed.measured.wrong_tensors, ["layer 1 self_attn.o_proj"]);
    let dora = prove("dora", &|f| edit(&f.join("adapter_config.json"), &serde_json::json!({"use_dora": true})));
    assert_eq!(failed(&dora), ["loads"]);
    let targets = prove("missing", &|f| fs::remove_file(f.join("adapter_model.safetensors")).unwrap());
    assert_eq!(failed(&targets), ["loads"]);
}

#[test]
fn answers_that_part_are_explained_only_by_close_candidates() {
    let trained = witness::Answer {
        tokens: vec![5, 6, 7],
        candidates: vec![
            vec![(5, 9.0), (1, 2.0)],
            vec![(6, 3.0), (8, 2.75)],
            vec![(7, 4.0), (2, 3.5)],
            vec![(2, 4.0), (9, 1.0)],
        ],
        first_row: 0,
        logits: Vec::new(),
    };
    let text = |ids: &[u32]| format!("{ids:?}");
    let part = |exported: &[u32]| {
        let check = compare(&trained, exported, &STOP, text);
        (check.first_difference, check.gap)
    };
    assert_eq!(part(&[5, 6, 7]), (None, None));
    assert_eq!(part(&[5, 8, 7]), (Some(1), Some(0.25)));
    assert_eq!(part(&[5, 4, 7]), (Some(1), None));
    // The export stopped where the trained model had the stop token second, or went on where it stopped.
    assert_eq!(part(&[5, 6]), (Some(2), Some(0.5)));
    assert_eq!(part(&[5, 6, 7, 9]), (Some(3), Some(3.0)));
    assert_eq!(part(&[]), (Some(0), None));
}

#[test]
fn values_are_shown_with_the_digits_that_matter() {
    let shown = [0.0, 1.0, 0.25, 12.345, 0.001234, 1234.5, 4.2e-9, 3.2e7, f64::NAN].map(short);
    assert_eq!(shown, ["0", "1", "0.25", "12.3", "0.00123", "1234", "4.2e-9", "3.2e7", "NaN"]);
    assert_eq!(percent(0.9957), "99.6 %");
}
