//! Adapters read back: a PEFT folder, whoever made it, and the weights of a checkpoint.
//!
//! A setting that changes the result and that Hearth does not compute is refused by its name; a key that nobody here
//! knows is passed over only while it is switched off.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use candle_core::Device;
use serde_json::{Map, Value};

use super::adapter::{CONFIG, WEIGHTS, names};
use super::{Error, text};
use crate::config::{LoraConfig, Target};
use crate::model::{Adapter, ModelShape};

/// Keys that say nothing about what the adapter computes once it is trained.
const HARMLESS: [&str; 15] = [
    "auto_mapping",
    "base_model_name_or_path",
    "exclude_modules",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "lora_dropout",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
    "eva_config",
];

/// Keys that are read here.
const READ: [&str; 8] =
    ["peft_type", "r", "lora_alpha", "use_rslora", "alpha_pattern", "rank_pattern", "init_lora_weights", "bias"];

/// What is known about keys that are refused when they are set.
const REASONS: [(&str, &str); 9] = [
    ("use_dora", "DoRA scales every row by a learned magnitude"),
    ("fan_in_fan_out", "the base's weights would be stored transposed"),
    ("modules_to_save", "whole modules were trained beside the adapter"),
    ("trainable_token_indices", "rows of the embedding were trained beside the adapter"),
    ("target_parameters", "parameters that are not linear layers were adapted"),
    ("layer_replication", "the base's layers are repeated"),
    ("lora_bias", "the adapter has biases"),
    ("use_qalora", "the input is pooled in groups before the adapter"),
    ("alora_invocation_tokens", "the adapter is active only after certain tokens"),
];

/// Opens a PEFT folder for a decoder of the given shape, on `device`.
///
/// An adapter whose rank or scale differs from layer to layer, or that uses rank-stabilised scaling, comes back as one
/// of uniform rank and scale that computes the same: narrow layers are filled up with zeros and scales multiplied into
/// `B`.
///
/// # Errors
/// Where a setting or tensor is not understood (named), or the tensors are not those of this base model.
pub fn read_adapter(folder: &Path, shape: &ModelShape, device: &Device) -> Result<Adapter, Error> {
    let path = folder.join(CONFIG);
    let config = Config { path: &path, keys: text::json_object(&path)? };
    config.check()?;
    let weights = Weights::read(folder.join(WEIGHTS), shape)?;
    config.check_targets(&weights, shape)?;

    let mut layers = Vec::new();
    for (&(layer, target), halves) in &weights.layers {
        let (a, b, rank) = weights.pair(layer, target, halves, shape)?;
        let module = format!("model.layers.{layer}.{}", target.module());
        let wanted = config.rank(&module)?;
        if rank != wanted {
            let reason = format!("has rank {rank}, but {CONFIG} says {wanted}");
            return Err(weights.bad(&names(layer, target)[0], reason));
        }
        layers.push(Layer { layer, target, rank, scale: config.scale(&module, rank)?, a, b });
    }
    let Some(first) = layers.first() else {
        return Err(weights.bad("lora_A", "is missing: no layer is adapted".into()));
    };
    let rank = layers.iter().map(|l| l.rank).max().unwrap_or(0);
    let uniform = layers.iter().all(|l| l.rank == rank && l.scale == first.scale);
    let targets: BTreeSet<Target> = layers.iter().map(|l| l.target).collect();
    let lora = LoraConfig {
        rank,
        // alpha / rank is the scale; 1 where scales are multiplied into B.
        alpha: if uniform { config.uniform_alpha(rank, first.scale)? } else { rank as f32 },
        dropout: config.number("lora_dropout")?.unwrap_or(0.0) as f32,
        targets: Target::ALL.into_iter().filter(|t| targets.contains(t)).collect(),
    };
    let mut adapter = empty(shape, &lora, device)?;
    for layer in layers {
        layer.place(&mut adapter, rank, uniform, shape)?;
    }
    Ok(adapter)
}

/// Opens the `adapter.safetensors` of a checkpoint, which has the form that the run's settings say.
///
/// # Errors
/// Where a tensor is missing, of another size, or one too many.
pub fn read_checkpoint(file: &Path, shape: &ModelShape, lora: &LoraConfig, device: &Device) -> Result<Adapter, Error> {
    let weights = Weights::read(file.into(), shape)?;
    let mut adapter = empty(shape, lora, device)?;
    let expected: Vec<_> = adapter.names().collect();
    for &(layer, target) in &expected {
        let Some(halves) = weights.layers.get(&(layer, target)) else {
            return Err(weights.bad(&names(layer, target)[0], "is missing".into()));
        };
        let (a, b, rank) = weights.pair(layer, target, halves, shape)?;
        if rank != lora.rank {
            return Err(weights.bad(&names(layer, target)[0], format!("has rank {rank}, the run {}", lora.rank)));
        }
        adapter.set(layer, target, &a, &b)?;
    }
    match weights.layers.keys().find(|key| !expected.contains(key)) {
        Some(&(layer, target)) => Err(weights.bad(&names(layer, target)[0], "is not part of the run's adapter".into())),
        None => Ok(adapter),
    }
}

/// An adapter of zeros.
fn empty(shape: &ModelShape, lora: &LoraConfig, device: &Device) -> Result<Adapter, Error> {
    let adapter = Adapter::new(shape, lora, 0, device)?;
    crate::ops::upload::clear(adapter.flat())?;
    Ok(adapter)
}

/// One adapted layer as the file has it.
struct Layer {
    layer: usize,
    target: Target,
    rank: usize,
    scale: f64,
    a: Vec<f32>,
    b: Vec<f32>,
}

impl Layer {
    fn place(&self, adapter: &mut Adapter, rank: usize, uniform: bool, shape: &ModelShape) -> Result<(), Error> {
        if uniform {
            return Ok(adapter.set(self.layer, self.target, &self.a, &self.b)?);
        }
        let (rows, cols) = shape.linear(self.target);
        let mut a = self.a.clone();
        a.resize(rank * cols, 0.0);
        let mut b = vec![0f32; rows * rank];
        for (to, from) in b.chunks_exact_mut(rank).zip(self.b.chunks_exact(self.rank)) {
            to.iter_mut().zip(from).for_each(|(to, &from)| *to = (f64::from(from) * self.scale) as f32);
        }
        Ok(adapter.set(self.layer, self.target, &a, &b)?)
    }
}

/// Shape and values of a tensor of the file.
type Half = (Vec<usize>, Vec<f32>);

/// The tensors of an adapter's file, by layer: `A` and `B`.
struct Weights {
    path: PathBuf,
    layers: BTreeMap<(usize, Target), [Option<Half>; 2]>,
}

impl Weights {
    fn read(path: PathBuf, shape: &ModelShape) -> Result<Self, Error> {
        let header = crate::model::safetensors::Header::read(&path)?;
        let mut weights = Self { path, layers: BTreeMap::new() };
        for entry in header.entries() {
            let Some((layer, target, half)) = parse(&entry.name) else {
                let reason = "is not the A or B of a linear layer of a block".to_string();
                return Err(weights.bad(&entry.name, reason));
            };
            if layer >= shape.n_layers {
                let reason = format!("is of layer {layer}, but the base has {} layers", shape.n_layers);
                return Err(weights.bad(&entry.name, reason));
            }
            let values = header.read_f32(entry)?;
            weights.layers.entry((layer, target)).or_default()[half] = Some((entry.shape.clone(), values));
        }
        Ok(weights)
    }

    /// `A`, `B` and their rank, sizes checked against the base.
    fn pair(
        &self,
        layer: usize,
        target: Target,
        halves: &[Option<Half>; 2],
        shape: &ModelShape,
    ) -> Result<(Vec<f32>, Vec<f32>, usize), Error> {
        let [a_name, b_name] = names(layer, target);
        let [a, b] = halves;
        let (a_shape, a) = a.clone().ok_or_else(|| self.bad(&a_name, "is missing".into()))?;
        let (b_shape, b) = b.clone().ok_or_else(|| self.bad(&b_name, "is missing".into()))?;
        let (rows, cols) = shape.linear(target);
        let rank = a_shape.first().copied().unwrap_or(0);
        if a_shape != [rank, cols] || rank == 0 {
            return Err(self.bad(&a_name, format!("has the shape {a_shape:?}, this base needs [rank, {cols}]")));
        }
        if b_shape != [rows, rank] {
            return Err(self.bad(&b_name, format!("has the shape {b_shape:?}, this base needs [{rows}, {rank}]")));
        }
        Ok((a, b, rank))
    }

    fn bad(&self, tensor: &str, reason: String) -> Error {
        Error::AdapterTensor { path: self.path.clone(), tensor: tensor.into(), reason }
    }
}

/// `base_model.model.model.layers.3.mlp.up_proj.lora_A.weight` as (3, up, 0).
fn parse(name: &str) -> Option<(usize, Target, usize)> {
    let (layer, rest) = name.strip_prefix("base_model.model.model.layers.")?.split_once('.')?;
    let (module, half) = rest.strip_suffix(".weight")?.rsplit_once(".lora_")?;
    let half = ["A", "B"].iter().position(|h| *h == half)?;
    Some((layer.parse().ok()?, Target::ALL.into_iter().find(|t| t.module() == module)?, half))
}

/// `adapter_config.json`.
struct Config<'a> {
    path: &'a Path,
    keys: Map<String, Value>,
}

impl Config<'_> {
    fn bad(&self, key: &str, reason: &str) -> Error {
        let value = self.keys.get(key).unwrap_or(&Value::Null).to_string();
        Error::AdapterKey { path: self.path.into(), key: key.into(), value, reason: reason.into() }
    }

    /// Refuses what changes the result and is not computed here.
    fn check(&self) -> Result<(), Error> {
        if self.keys.get("peft_type").and_then(Value::as_str) != Some("LORA") {
            return Err(self.bad("peft_type", "only LORA adapters are read"));
        }
        if self.keys.get("bias").is_some_and(|b| !is_off(b) && b != "none") {
            return Err(self.bad("bias", "biases were trained beside the adapter"));
        }
        let initialised = match self.keys.get("init_lora_weights") {
            None | Some(Value::Null | Value::Bool(_)) => true,
            Some(Value::String(how)) => ["gaussian", "eva", "orthogonal"].contains(&how.as_str()),
            _ => false,
        };
        if !initialised {
            return Err(self.bad("init_lora_weights", "this initialisation changes the base's weights"));
        }
        for (key, value) in &self.keys {
            if is_off(value) || HARMLESS.contains(&key.as_str()) || READ.contains(&key.as_str()) {
                continue;
            }
            let reason = REASONS
                .iter()
                .find(|(name, _)| name == key)
                .map_or("Hearth does not know this setting, and it is not switched off", |(_, reason)| reason);
            return Err(self.bad(key, reason));
        }
        Ok(())
    }

    /// A list of target modules has to fit the tensors; where it doesn't, weights are missing or would be ignored.
    fn check_targets(&self, weights: &Weights, shape: &ModelShape) -> Result<(), Error> {
        let Some(Value::Array(list)) = self.keys.get("target_modules") else { return Ok(()) };
        let modules: Vec<&str> = list.iter().filter_map(Value::as_str).collect();
        let only: Option<Vec<usize>> = match self.keys.get("layers_to_transform") {
            Some(Value::Array(layers)) => Some(layers.iter().filter_map(|l| Some(l.as_u64()? as usize)).collect()),
            Some(Value::Number(layer)) => Some(layer.as_u64().map(|l| l as usize).into_iter().collect()),
            _ => None,
        };
        let excluded = self.keys.get("exclude_modules").is_some_and(|e| !is_off(e));
        for layer in 0..shape.n_layers {
            for target in Target::ALL {
                let name = format!("model.layers.{layer}.{}", target.module());
                let wanted = modules.iter().any(|m| ends_with_module(&name, m))
                    && only.as_ref().is_none_or(|only| only.contains(&layer));
                let there = weights.layers.contains_key(&(layer, target));
                if there && !wanted {
                    let reason = "is not among the target_modules of adapter_config.json".to_string();
                    return Err(weights.bad(&names(layer, target)[0], reason));
                }
                if wanted && !there && !excluded {
                    let reason = "is missing, but its layer is among the target_modules".to_string();
                    return Err(weights.bad(&names(layer, target)[0], reason));
                }
            }
        }
        Ok(())
    }

    fn number(&self, key: &str) -> Result<Option<f64>, Error> {
        match self.keys.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or_else(|| self.bad(key, "it has to be a number")),
        }
    }

    /// The entry of a pattern for a module. PEFT takes keys for regular expressions; here they are the ends of names,
    /// which is what people write.
    fn pattern(&self, key: &str, module: &str) -> Result<Option<f64>, Error> {
        let Some(patterns) = self.keys.get(key).and_then(Value::as_object) else { return Ok(None) };
        for (pattern, value) in patterns {
            if pattern.contains(|c| "\\^$*+?()[]{}|".contains(c)) {
                return Err(self.bad(key, "regular expressions in it are not read"));
            }
            if ends_with_module(module, pattern) {
                return value.as_f64().map(Some).ok_or_else(|| self.bad(key, "its values have to be numbers"));
            }
        }
        Ok(None)
    }

    fn rank(&self, module: &str) -> Result<usize, Error> {
        let rank = match self.pattern("rank_pattern", module)? {
            Some(rank) => rank,
            None => self.number("r")?.ok_or_else(|| self.bad("r", "the rank is needed"))?,
        };
        if rank < 1.0 || rank.fract() != 0.0 {
            return Err(self.bad("r", "a rank is a whole number above 0"));
        }
        Ok(rank as usize)
    }

    /// `alpha / r`, or `alpha / sqrt(r)` where rank-stabilised (Kalajdzievski 2023, arXiv:2312.03732).
    fn scale(&self, module: &str, rank: usize) -> Result<f64, Error> {
        let alpha = match self.pattern("alpha_pattern", module)? {
            Some(alpha) => alpha,
            None => self.number("lora_alpha")?.ok_or_else(|| self.bad("lora_alpha", "the scale needs it"))?,
        };
        let stabilised = self.keys.get("use_rslora").and_then(Value::as_bool).unwrap_or(false);
        Ok(alpha / if stabilised { (rank as f64).sqrt() } else { rank as f64 })
    }

    /// The alpha of a uniform adapter: the file's own where it is plain, so that nothing is rounded.
    fn uniform_alpha(&self, rank: usize, scale: f64) -> Result<f32, Error> {
        let own = self.number("lora_alpha")?.unwrap_or(0.0);
        Ok(if own / rank as f64 == scale { own as f32 } else { (scale * rank as f64) as f32 })
    }
}

/// PEFT's rule for names in lists: the whole name or its end after a dot.
fn ends_with_module(name: &str, end: &str) -> bool {
    name == end || name.strip_suffix(end).is_some_and(|rest| rest.ends_with('.'))
}

/// Null, false, or nothing in it.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(keys) => keys.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}
