//! Fixtures of this folder's tests, and the claims about what is written and read.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use serde_json::{Value, json};

use super::*;
use crate::config::{BaseFormat, LoraConfig, Target};
use crate::generate::Generator;
use crate::model::weights::Precision;
use crate::model::{Adapter, Model, ModelSource, TokenizerBundle};

pub(super) fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/goldens")
}

/// A tiny base with the adapter that PEFT wrote for it.
pub(super) struct Tuned {
    pub(super) source: ModelSource,
    pub(super) bundle: TokenizerBundle,
    pub(super) adapter: Adapter,
    pub(super) model: Model,
}

impl Tuned {
    pub(super) fn new(name: &str, base: BaseFormat) -> Self {
        Self::at(&goldens().join(name), &goldens().join(format!("{name}-adapter")), base)
    }

    pub(super) fn at(base: &Path, adapter: &Path, format: BaseFormat) -> Self {
        let source = ModelSource::open(base).unwrap();
        let bundle = source.tokenizer().unwrap();
        let adapter = read_adapter(adapter, source.shape(), &Device::Cpu).unwrap();
        let model = Model::load(&source, adapter.lora(), Precision::f32(format), &Device::Cpu).unwrap();
        Self { source, bundle, adapter, model }
    }

    pub(super) fn merge(&self, options: &MergeOptions, out: &Path) -> Result<Written, Error> {
        write_merged(&self.source, &self.adapter, &self.bundle, options, out, &mut |_, _| {})
    }
}

pub(super) fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

pub(super) fn json_file(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Changes keys of a JSON file; null removes one.
pub(super) fn edit(path: &Path, keys: &Value) {
    let mut value = json_file(path);
    for (key, new) in keys.as_object().unwrap() {
        value[key] = new.clone();
    }
    fs::write(path, value.to_string()).unwrap();
}

/// A copy of a golden adapter with other settings.
fn adapter_with(keys: &Value) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&goldens().join("tiny-tied-adapter"), folder.path());
    edit(&folder.path().join("adapter_config.json"), keys);
    folder
}

fn read(folder: &Path) -> Result<Adapter, Error> {
    let source = ModelSource::open(&goldens().join("tiny-tied")).unwrap();
    read_adapter(folder, source.shape(), &Device::Cpu)
}

/// `s B A` of a layer.
fn change(adapter: &Adapter, layer: usize, target: Target) -> Vec<f32> {
    let (a, b, rank) = (adapter.a(layer, target).unwrap(), adapter.b(layer, target).unwrap(), adapter.lora().rank);
    let (cols, rows) = (a.len() / rank, b.len() / rank);
    let a = Tensor::from_vec(a, (rank, cols), &Device::Cpu).unwrap();
    let b = Tensor::from_vec(b, (rows, rank), &Device::Cpu).unwrap();
    let product = (b.matmul(&a).unwrap() * f64::from(adapter.lora().scale())).unwrap();
    product.flatten_all().unwrap().to_vec1().unwrap()
}

#[track_caller]
fn assert_near(got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len());
    let scale = want.iter().fold(0f32, |m, x| m.max(x.abs()));
    let worst = got.iter().zip(want).map(|(g, w)| (g - w).abs()).fold(0f32, f32::max);
    assert!(worst <= tolerance * scale, "off by {worst}, scale {scale}");
}

#[test]
fn adapters_of_peft_give_the_logits_of_peft() {
    for name in ["tiny-tied", "tiny-llama3"] {
        let tuned = Tuned::new(name, BaseFormat::F32);
        let mut generator = Generator::new(&tuned.model, Some(&tuned.adapter)).unwrap();
        let golden = json_file(&goldens().join(format!("{name}.json")));
        let tensors =
            candle_core::safetensors::load(goldens().join(format!("{name}.safetensors")), &Device::Cpu).unwrap();
        let want: Vec<f32> = tensors["logits"].flatten_all().unwrap().to_vec1().unwrap();
        let mut got = Vec::new();
        for document in golden["documents"].as_array().unwrap() {
            let ids: Vec<u32> = serde_json::from_value(document["ids"].clone()).unwrap();
            got.extend(generator.logits(&ids).unwrap());
        }
        // f32 sums in another order.
        assert_near(&got, &want, 2e-5);
    }
}

#[test]
fn an_exported_adapter_is_read_back_bit_for_bit_with_its_tokenizer() {
    let disk = tempfile::tempdir().unwrap();
    let out = disk.path().join("mein Adapter 适配器 🦙");
    let tuned = Tuned::new("tiny-llama3", BaseFormat::F32);
    let written = write_adapter(&tuned.source, &tuned.adapter, &tuned.bundle, &out).unwrap();
    let on_disk: u64 = fs::read_dir(&out).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
    assert_eq!(written.bytes, on_disk);
    let back = read_adapter(&out, tuned.source.shape(), &Device::Cpu).unwrap();
    assert_eq!(back.lora(), tuned.adapter.lora());
    assert_eq!(back.flat().to_vec1::<f32>().unwrap(), tuned.adapter.flat().to_vec1::<f32>().unwrap());
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        assert_eq!(fs::read(out.join(name)).unwrap(), fs::read(goldens().join("tiny-llama3").join(name)).unwrap());
    }
    let config = json_file(&out.join("adapter_config.json"));
    let peft = json_file(&goldens().join("tiny-llama3-adapter/adapter_config.json"));
    for (key, value) in config.as_object().unwrap() {
        match key.as_str() {
            "base_model_name_or_path" => assert!(Path::new(value.as_str().unwrap()).is_absolute()),
            "target_modules" => assert_eq!(value.as_array().unwrap().len(), 7),
            _ => assert_eq!(Some(value), peft.get(key), "{key}"),
        }
    }
    let card = fs::read_to_string(out.join("README.md")).unwrap();
    assert!(card.contains("tiny-llama3") && card.contains("rank 4"), "{card}");
}

#[test]
fn peft_settings_that_change_the_scale_are_computed() {
    let plain = read(&goldens().join("tiny-tied-adapter")).unwrap();
    let (rank, alpha) = (plain.lora().rank as f32, plain.lora().alpha);
    let scaled =
        |layer, target, factor: f32| -> Vec<f32> { change(&plain, layer, target).iter().map(|x| x * factor).collect() };
    let stabilised = read(adapter_with(&json!({"use_rslora": true})).path()).unwrap();
    assert_eq!(stabilised.lora().scale(), alpha / rank.sqrt());
    assert_near(&change(&stabilised, 1, Target::Up), &scaled(1, Target::Up, rank.sqrt()), 1e-6);

    let pattern = json!({"alpha_pattern": {"layers.1.self_attn.q_proj": 8.0 * alpha, "down_proj": alpha / 2.0}});
    let patterned = read(adapter_with(&pattern).path()).unwrap();
    for (layer, target, factor) in
        [(1, Target::Q, 8.0), (0, Target::Q, 1.0), (0, Target::Down, 0.5), (1, Target::Down, 0.5), (1, Target::V, 1.0)]
    {
        assert_near(&change(&patterned, layer, target), &scaled(layer, target, factor), 1e-6);
    }
}

#[test]
fn layers_of_other_ranks_and_layers_left_out_are_computed() {
    let folder = adapter_with(&json!({"rank_pattern": {"layers.0.mlp.up_proj": 2}}));
    let path = folder.path().join("adapter_model.safetensors");
    let mut tensors = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
    let [a, b] = super::adapter::names(0, Target::Up);
    let narrow = |name: &str, dim| tensors[name].narrow(dim, 0, 2).unwrap().contiguous().unwrap();
    let (narrow_a, narrow_b) = (narrow(&a, 0), narrow(&b, 1));
    let want = (narrow_b.matmul(&narrow_a).unwrap() * (8.0 / 2.0)).unwrap();
    tensors.insert(a.clone(), narrow_a);
    tensors.insert(b.clone(), narrow_b);
    candle_core::safetensors::save(&tensors, &path).unwrap();
    let adapter = read(folder.path()).unwrap();
    assert_near(&change(&adapter, 0, Target::Up), &want.flatten_all().unwrap().to_vec1::<f32>().unwrap(), 1e-6);

    // Without the pattern the file contradicts its settings.
    edit(&folder.path().join("adapter_config.json"), &json!({"rank_pattern": {}}));
    let error = read(folder.path()).unwrap_err().to_string();
    assert!(error.contains("has rank 2, but adapter_config.json says 4"), "{error}");

    let folder = adapter_with(&json!({"layers_to_transform": [1]}));
    let error = read(folder.path()).unwrap_err().to_string();
    assert!(error.contains("layers.0.self_attn.q_proj.lora_A") && error.contains("target_modules"), "{error}");
    let path = folder.path().join("adapter_model.safetensors");
    let mut tensors = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
    tensors.retain(|name, _| name.contains("layers.1."));
    candle_core::safetensors::save(&tensors, &path).unwrap();
    let adapter = read(folder.path()).unwrap();
    assert!(change(&adapter, 0, Target::Q).iter().all(|&x| x == 0.0));
    assert!(change(&adapter, 1, Target::Q).iter().any(|&x| x != 0.0));
}

#[test]
fn peft_keys_that_are_unknown_are_passed_over_only_while_switched_off() {
    let off = json!({"brand_new_option": null, "another_switch": false, "third": {}, "fourth": []});
    assert!(read(adapter_with(&off).path()).is_ok());
    for (keys, named) in [
        (json!({"brand_new_option": {"mode": "on"}}), "brand_new_option"),
        (json!({"another_switch": true}), "another_switch"),
        (json!({"strength": 0.5}), "strength"),
        (json!({"use_dora": true}), "DoRA"),
        (json!({"modules_to_save": ["lm_head"]}), "modules_to_save"),
        (json!({"bias": "all"}), "bias"),
        (json!({"fan_in_fan_out": true}), "fan_in_fan_out"),
        (json!({"init_lora_weights": "pissa"}), "init_lora_weights"),
        (json!({"peft_type": "IA3"}), "peft_type"),
        (json!({"alpha_pattern": {"layers\\.\\d+": 3}}), "alpha_pattern"),
        (json!({"lora_alpha": "much"}), "lora_alpha"),
        (json!({"r": 0}), "r = 0"),
    ] {
        let error = read(adapter_with(&keys).path()).unwrap_err();
        assert!(matches!(error, Error::AdapterKey { .. }), "{keys}: {error}");
        assert!(error.to_string().contains(named), "{keys}: {error}");
    }
}

#[test]
fn an_adapter_for_another_base_is_refused_with_the_sizes() {
    let other = ModelSource::open(&goldens().join("tiny-llama3")).unwrap();
    let error = read_adapter(&goldens().join("tiny-tied-adapter"), other.shape(), &Device::Cpu).unwrap_err();
    assert!(error.to_string().contains("this base needs [rank, 48]"), "{error}");
}

#[test]
fn a_checkpoint_is_read_as_the_run_says_or_refused() {
    let source = ModelSource::open(&goldens().join("tiny-tied")).unwrap();
    let file = goldens().join("tiny-tied-adapter/adapter_model.safetensors");
    let lora = LoraConfig { rank: 4, alpha: 8.0, ..LoraConfig::default() };
    let read = |lora: &LoraConfig| read_checkpoint(&file, source.shape(), lora, &Device::Cpu);
    let peft = read_adapter(&goldens().join("tiny-tied-adapter"), source.shape(), &Device::Cpu).unwrap();
    let values = |adapter: &Adapter| adapter.flat().to_vec1::<f32>().unwrap();
    assert_eq!(values(&read(&lora).unwrap()), values(&peft));
    let fewer = LoraConfig { targets: vec![Target::Q, Target::V], ..lora.clone() };
    assert!(read(&fewer).unwrap_err().to_string().contains("is not part of the run's adapter"));
    let wider = LoraConfig { rank: 8, ..lora };
    assert!(read(&wider).unwrap_err().to_string().contains("has rank 4, the run 8"));
}

fn tensors_of(folder: &Path) -> HashMap<String, Tensor> {
    let mut all = HashMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "safetensors") {
            all.extend(candle_core::safetensors::load(path, &Device::Cpu).unwrap());
        }
    }
    all
}

#[test]
fn merged_weights_are_base_plus_scaled_product_rounded_once() {
    let disk = tempfile::tempdir().unwrap();
    for (name, dtype, key) in [("tiny-llama3", DType::BF16, "bfloat16"), ("tiny-tied", DType::F16, "float16")] {
        let tuned = Tuned::new(name, BaseFormat::F32);
        let out = disk.path().join(name);
        // By default a base in a 16-bit format keeps it, and one in f32 becomes f16.
        let mut seen = Vec::new();
        let written = write_merged(
            &tuned.source,
            &tuned.adapter,
            &tuned.bundle,
            &MergeOptions::default(),
            &out,
            &mut |done, total| seen.push((done, total)),
        )
        .unwrap();
        let merged = tensors_of(&out);
        let base = tensors_of(&goldens().join(name));
        assert_eq!(seen.first(), Some(&(0, base.len())));
        assert_eq!(seen.last(), Some(&(base.len(), base.len())));
        assert_eq!(merged.len(), base.len());
        for (name, base) in &base {
            let base = base.to_dtype(DType::F32).unwrap();
            let want = match super::merge::linear(name) {
                Some((layer, target)) => {
                    let change = Tensor::from_vec(change(&tuned.adapter, layer, target), base.dims(), &Device::Cpu);
                    (base + change.unwrap()).unwrap()
                }
                None => base,
            };
            let (got, want) = (&merged[name], want.to_dtype(dtype).unwrap());
            assert_eq!((got.dtype(), got.dims()), (dtype, want.dims()));
            let f32s = |t: &Tensor| t.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            // The sum over the rank may be one f32 rounding away, which now and then is the next 16-bit number.
            let (got, want) = (f32s(got), f32s(&want));
            let steps = got.iter().zip(&want).filter(|(g, w)| g != w).count();
            assert!(steps * 100 <= got.len(), "{name}: {steps} of {} differ", got.len());
            assert_near(&got, &want, 0.008);
        }
        let config = json_file(&out.join("config.json"));
        let given = json_file(&goldens().join(name).join("config.json"));
        for (name, value) in given.as_object().unwrap() {
            let want = if name == "dtype" { &json!(key) } else { value };
            assert_eq!(config.get(name), Some(want), "{name}");
        }
        assert_eq!(config.as_object().unwrap().len(), given.as_object().unwrap().len());
        for file in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
            assert_eq!(fs::read(out.join(file)).unwrap(), fs::read(goldens().join(name).join(file)).unwrap(), "{file}");
        }
        assert_eq!(written.notes, Vec::<String>::new());
    }
}

#[test]
fn a_weight_too_large_for_f16_makes_the_export_bf16_and_says_so() {
    let disk = tempfile::tempdir().unwrap();
    let mut tuned = Tuned::new("tiny-tied", BaseFormat::F32);
    let (a, mut b) = (tuned.adapter.a(1, Target::V).unwrap(), tuned.adapter.b(1, Target::V).unwrap());
    b[0] = 1e7;
    tuned.adapter.set(1, Target::V, &a, &b).unwrap();
    let written = tuned.merge(&MergeOptions::default(), &disk.path().join("auto")).unwrap();
    assert_eq!(written.dtype, ExportDtype::Bf16);
    assert!(written.notes[0].contains("model.layers.1.self_attn.v_proj.weight"), "{:?}", written.notes);
    let options = MergeOptions { dtype: Some(ExportDtype::F16), ..MergeOptions::default() };
    let error = tuned.merge(&options, &disk.path().join("f16")).unwrap_err();
    assert!(matches!(&error, Error::DoesNotFit { tensor, .. } if tensor.contains("v_proj")), "{error}");
    assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 1, "a refused export leaves nothing");
}

#[test]
fn shards_hold_at_most_what_was_asked_and_the_index_names_them() {
    let disk = tempfile::tempdir().unwrap();
    let tuned = Tuned::new("tiny-llama3", BaseFormat::F32);
    let whole = disk.path().join("whole");
    tuned.merge(&MergeOptions::default(), &whole).unwrap();
    let out = disk.path().join("sharded");
    let options = MergeOptions { max_shard_bytes: 40_000, ..MergeOptions::default() };
    tuned.merge(&options, &out).unwrap();
    let index = json_file(&out.join("model.safetensors.index.json"));
    let map = index["weight_map"].as_object().unwrap();
    let (one, many) = (tensors_of(&whole), tensors_of(&out));
    assert_eq!(map.len(), one.len());
    let mut total = 0;
    for (name, tensor) in &one {
        total += tensor.elem_count() * 2;
        let shard = out.join(map[name].as_str().unwrap());
        assert!(fs::metadata(&shard).unwrap().len() < 48_000);
        assert!(candle_core::safetensors::load(shard, &Device::Cpu).unwrap().contains_key(name));
        let bits = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<half::bf16>().unwrap();
        assert_eq!(bits(tensor), bits(&many[name]));
    }
    assert_eq!(index["metadata"]["total_size"], json!(total));
    assert!(ModelSource::open(&out).is_ok());
}

#[test]
fn an_nf4_base_is_merged_into_the_weights_it_was_trained_with() {
    let disk = tempfile::tempdir().unwrap();
    let tuned = Tuned::new("tiny-llama3", BaseFormat::Nf4);
    let out = disk.path().join("out");
    let options = MergeOptions { base: BaseFormat::Nf4, dtype: Some(ExportDtype::F32), ..MergeOptions::default() };
    tuned.merge(&options, &out).unwrap();
    let merged = ModelSource::open(&out).unwrap();
    let merged = Model::load(&merged, &LoraConfig::none(), Precision::f32(BaseFormat::F32), &Device::Cpu).unwrap();
    let ids: Vec<u32> = (10..40).collect();
    let want = Generator::new(&tuned.model, Some(&tuned.adapter)).unwrap().logits(&ids).unwrap();
    assert_near(&Generator::new(&merged, None).unwrap().logits(&ids).unwrap(), &want, 2e-5);
}

#[test]
fn an_output_head_that_a_tied_base_carries_unused_is_left_out_and_named() {
    let disk = tempfile::tempdir().unwrap();
    let base = disk.path().join("base");
    copy_folder(&goldens().join("tiny-tied"), &base);
    let mut tensors = candle_core::safetensors::load(base.join("model.safetensors"), &Device::Cpu).unwrap();
    tensors.insert("lm_head.weight".into(), tensors["model.embed_tokens.weight"].affine(2.0, 0.0).unwrap());
    tensors.insert(
        "model.layers.0.self_attn.rotary_emb.inv_freq".into(),
        Tensor::new(&[1f32, 0.5], &Device::Cpu).unwrap(),
    );
    tensors.insert("model.counter".into(), Tensor::new(&[7i64], &Device::Cpu).unwrap());
    candle_core::safetensors::save(&tensors, base.join("model.safetensors")).unwrap();
    fs::write(base.join("LICENSE.txt"), "terms").unwrap();
    let tuned = Tuned::at(&base, &goldens().join("tiny-tied-adapter"), BaseFormat::F32);
    let out = disk.path().join("out");
    let written = tuned.merge(&MergeOptions::default(), &out).unwrap();
    let merged = tensors_of(&out);
    assert!(!merged.contains_key("lm_head.weight") && !merged.contains_key("model.counter"));
    assert!(merged.contains_key("model.layers.0.self_attn.rotary_emb.inv_freq"));
    assert_eq!(written.notes.len(), 2, "{:?}", written.notes);
    assert_eq!(fs::read_to_string(out.join("LICENSE.txt")).unwrap(), "terms");
}

#[test]
fn generation_settings_are_kept_byte_for_byte_unless_a_stop_token_is_missing() {
    let disk = tempfile::tempdir().unwrap();
    let base = disk.path().join("base");
    copy_folder(&goldens().join("tiny-tied"), &base);
    // transformers would refuse to save this one.
    let odd = "{\"temperature\":0.6,  \"do_sample\": false, \"eos_token_id\": 2}";
    fs::write(base.join("generation_config.json"), odd).unwrap();
    let merge = |stop_ids: &[u32], name: &str| {
        let tuned = Tuned::at(&base, &goldens().join("tiny-tied-adapter"), BaseFormat::F32);
        let options = MergeOptions { stop_ids: stop_ids.to_vec(), ..MergeOptions::default() };
        let notes = tuned.merge(&options, &disk.path().join(name)).unwrap().notes;
        (fs::read_to_string(disk.path().join(name).join("generation_config.json")).ok(), notes)
    };
    assert_eq!(merge(&[2], "same"), (Some(odd.into()), vec![]));
    let (extended, notes) = merge(&[2, 1], "extended");
    let extended: Value = serde_json::from_str(&extended.unwrap()).unwrap();
    assert_eq!(extended, json!({"temperature": 0.6, "do_sample": false, "eos_token_id": [2, 1]}));
    assert!(notes[0].contains("<|im_start|> (1)"), "{notes:?}");

    fs::remove_file(base.join("generation_config.json")).unwrap();
    assert_eq!(merge(&[2], "none"), (None, vec![]));
    let (made, notes) = merge(&[1], "made");
    let made: Value = serde_json::from_str(&made.unwrap()).unwrap();
    assert_eq!(made, json!({"bos_token_id": 0, "pad_token_id": 3, "eos_token_id": [2, 1]}));
    assert!(notes[0].contains("was added"), "{notes:?}");
}

#[test]
fn a_full_target_is_refused_and_left_alone() {
    let disk = tempfile::tempdir().unwrap();
    fs::write(disk.path().join("mine.json"), "{\"mine\":true}").unwrap();
    let tuned = Tuned::new("tiny-tied", BaseFormat::F32);
    assert!(matches!(tuned.merge(&MergeOptions::default(), disk.path()), Err(Error::Occupied { .. })));
    let result = write_adapter(&tuned.source, &tuned.adapter, &tuned.bundle, disk.path());
    assert!(matches!(result, Err(Error::Occupied { .. })));
    assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 1);
}
