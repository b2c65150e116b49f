//! One weight of the merged model: `W + (alpha / r) B A`, computed in f32.

use candle_core::{Device, Tensor};

use super::Error;
use crate::config::{BaseFormat, Target};
use crate::model::{Adapter, ModelSource};
use crate::ops::gemm::{Write, gemm};
use crate::ops::nf4;

/// A weight before and after.
pub(super) struct Merged {
    /// Row-major, f32, not yet rounded to the format of a file.
    pub(super) values: Vec<f32>,
    /// The base's weight, where it was asked for and the adapter changes it.
    pub(super) base: Option<Vec<f32>>,
}

/// A tensor of the merged model by its Hugging Face name.
///
/// `base` says what the adapter was trained on: the weights as they are, or quantised to NF4, in which case the merged
/// model is built on the dequantised weights, the ones that the adapter has learned to correct.
pub(super) fn tensor(
    source: &ModelSource,
    adapter: &Adapter,
    base: BaseFormat,
    name: &str,
    keep_base: bool,
) -> Result<Merged, Error> {
    let (shape, values) = source.tensor_f32(name)?;
    let (Some((layer, target)), &[rows, cols]) = (linear(name), shape.as_slice()) else {
        return Ok(Merged { values, base: None });
    };
    let weight = match base {
        BaseFormat::F32 | BaseFormat::Half => Tensor::from_vec(values, (rows, cols), &Device::Cpu)?,
        BaseFormat::Nf4 => {
            let quantised = nf4::quantize(&values, rows, cols, &Device::Cpu)?;
            // The same memory takes the dequantised values.
            let weight = Tensor::from_vec(values, (rows, cols), &Device::Cpu)?;
            nf4::dequantize(&weight, &quantised)?;
            weight
        }
    };
    let (Some(a), Some(b)) = (adapter.a(layer, target), adapter.b(layer, target)) else {
        return Ok(Merged { values: weight.flatten_all()?.to_vec1()?, base: None });
    };
    let (rank, scale) = (adapter.lora().rank, adapter.lora().scale());
    let a = Tensor::from_vec(a, (rank, cols), &Device::Cpu)?;
    let b = Tensor::from_vec(b, (rows, rank), &Device::Cpu)?;
    let before = if keep_base { Some(weight.flatten_all()?.to_vec1()?) } else { None };
    gemm(&weight, &b, &a, scale, Write::Add)?;
    Ok(Merged { values: weight.flatten_all()?.to_vec1()?, base: before })
}

/// Merges one linear layer and drops it; returns which share of all linear layers it is. What an export does for each of them.
pub(crate) fn merge_one(source: &ModelSource, adapter: &Adapter, base: BaseFormat) -> Result<f64, Error> {
    let name = format!("model.layers.0.{}.weight", Target::Q.module());
    let merged = tensor(source, adapter, base, &name, false)?;
    Ok(merged.values.len() as f64 / source.shape().linear_params() as f64)
}

/// Layer and place of a block's linear layer.
pub(super) fn linear(name: &str) -> Option<(usize, Target)> {
    let (layer, module) = name.strip_prefix("model.layers.")?.strip_suffix(".weight")?.split_once('.')?;
    let target = Target::ALL.into_iter().find(|target| target.module() == module)?;
    Some((layer.parse().ok()?, target))
}

/// Frobenius norm of `s B A`, the change of a layer, without the product: its square is `s² tr((BᵀB)(AAᵀ))`.
pub(super) fn change_norm(a: &Tensor, b: &Tensor, scale: f32) -> Result<f64, Error> {
    let f64s = |t: &Tensor| t.to_dtype(candle_core::DType::F64);
    let (a, b) = (f64s(a)?, f64s(b)?);
    let (aa, bb) = (a.matmul(&a.t()?)?, b.t()?.matmul(&b)?);
    let square = (aa * bb)?.sum_all()?.to_scalar::<f64>()?;
    Ok(f64::from(scale).abs() * square.max(0.0).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_linear_layers_are_told_from_others() {
        assert_eq!(linear("model.layers.12.self_attn.q_proj.weight"), Some((12, Target::Q)));
        assert_eq!(linear("model.layers.0.mlp.down_proj.weight"), Some((0, Target::Down)));
        for name in [
            "lm_head.weight",
            "model.layers.0.input_layernorm.weight",
            "model.layers.x.mlp.up_proj.weight",
            "model.layers.0.mlp.up_proj.bias",
            "model.layers.0.mlp.up_proj",
        ] {
            assert_eq!(linear(name), None, "{name}");
        }
    }

    #[test]
    fn the_norm_of_the_change_is_that_of_the_product() -> Result<(), Error> {
        let wave = |rows: usize, cols: usize| {
            let values: Vec<f32> = (0..rows * cols).map(|i| (i as f32 * 1.7).sin()).collect();
            Tensor::from_vec(values, (rows, cols), &Device::Cpu)
        };
        let (a, b) = (wave(3, 20)?, wave(12, 3)?);
        let product = (b.matmul(&a)? * 1.5)?;
        let want = product.sqr()?.sum_all()?.to_scalar::<f32>()?.sqrt() as f64;
        let got = change_norm(&a, &b, 1.5)?;
        assert!((got - want).abs() < 1e-5 * want, "{got} {want}");
        Ok(())
    }
}
