//! The global gradient norm and the factor that clips it.
//!
//! `‖g‖ = √(Σ gᵢ²)`, accumulated in f64 over fixed pieces that are added in order, so the result is the same on every run
//! and with any number of threads. Clipping multiplies all gradients with `min(1, max_norm / (‖g‖ + 1e-6))`
//! (Pascanu et al. 2012, arXiv:1211.5063 §3.2; the constant is PyTorch's).

use candle_core::{CpuStorage, DType, InplaceOp2, Layout, Result, Tensor};
#[cfg(feature = "cuda")]
use candle_core::{CudaStorage, backend::BackendStorage};
use rayon::prelude::*;

#[cfg(feature = "cuda")]
use super::cuda;
use super::host;
use super::memory::{Held, Site};

/// Gradients that are added up on their own.
const PIECE: usize = 16 * 1024;

/// `Σ gᵢ²` of a contiguous f32 tensor. NaN or infinite where a gradient is.
pub fn sum_of_squares(grads: &Tensor) -> Result<f64> {
    // On a card the sums of the pieces lie behind the total.
    let n_pieces = if grads.device().is_cuda() { grads.elem_count().div_ceil(PIECE) } else { 0 };
    let held = Held::new();
    let sum = held.zeros(1 + n_pieces, DType::F64, grads.device(), Site::GradientNorm)?;
    sum.inplace_op2(grads, &SumOfSquares)?;
    Ok(sum.to_vec1::<f64>()?[0])
}

/// The factor for all gradients of global norm `norm`; `max_norm` 0 switches clipping off. NaN where `norm` is NaN.
pub fn clip_factor(norm: f64, max_norm: f64) -> f64 {
    let factor = max_norm / (norm + 1e-6);
    // Not `min`, which would turn NaN into 1.
    if max_norm == 0.0 || factor > 1.0 { 1.0 } else { factor }
}

struct SumOfSquares;

impl InplaceOp2 for SumOfSquares {
    fn name(&self) -> &'static str {
        "sum-of-squares"
    }

    fn cpu_fwd(&self, sum: &mut CpuStorage, sum_layout: &Layout, grads: &CpuStorage, layout: &Layout) -> Result<()> {
        let pieces: Vec<f64> = host::values::<f32>(grads, layout)?.par_chunks(PIECE).map(piece_sum).collect();
        host::values_mut::<f64>(sum, sum_layout)?[0] = pieces.iter().sum();
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        sum: &mut CudaStorage,
        sum_layout: &Layout,
        grads: &CudaStorage,
        grads_layout: &Layout,
    ) -> Result<()> {
        const N_THREADS: usize = 256; // as in the kernels
        let sum = cuda::matrix(sum, sum_layout)?;
        let device = grads.device();
        let grads = super::adamw::flat("sum_of_squares", cuda::matrix(grads, grads_layout)?, DType::F32)?;
        let n = grads.n_rows * grads.n_cols;
        let n_pieces = n.div_ceil(PIECE);
        let pieces = cuda::Argument::Pointer(sum.pointer + DType::F64.size_in_bytes() as u64);
        let vectors = grads.pointer.is_multiple_of(16);
        let arguments = [pieces, grads.at(), n.into(), vectors.into()];
        KERNELS.launch(device, "sum_of_squares_pieces", [n_pieces, 1, 1], N_THREADS, 0, &arguments)?;
        let arguments = [sum.at(), pieces, n_pieces.into()];
        KERNELS.launch(device, "sum_of_squares_total", [1, 1, 1], N_THREADS, 0, &arguments)
    }
}

#[cfg(feature = "cuda")]
pub(super) const KERNELS: cuda::Kernels = cuda::kernels!("grad_norm");

/// Eight running sums, so that the additions don't wait for each other.
fn piece_sum(values: &[f32]) -> f64 {
    let (eights, rest) = values.as_chunks::<8>();
    let mut sums = [0f64; 8];
    for eight in eights {
        for (sum, &value) in sums.iter_mut().zip(eight) {
            *sum += f64::from(value) * f64::from(value);
        }
    }
    sums.iter().sum::<f64>() + rest.iter().map(|&value| f64::from(value) * f64::from(value)).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    fn values(n: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 7919 % 1009) as f32 - 500.0) * 1e-3).collect()
    }

    #[test]
    fn the_sum_is_right_for_odd_lengths_and_views() {
        for n in [1, 7, 8, 16_385, 100_003] {
            let values = values(n);
            let exact: f64 = values.iter().map(|&v| f64::from(v).powi(2)).sum();
            let tensor = Tensor::new(values, &Device::Cpu).unwrap();
            let sum = sum_of_squares(&tensor).unwrap();
            assert!((sum - exact).abs() <= 1e-12 * exact, "{n}: {sum} against {exact}");
            let padded = Tensor::cat(&[&tensor.ones_like().unwrap(), &tensor], 0).unwrap();
            assert_eq!(sum_of_squares(&padded.narrow(0, n, n).unwrap()).unwrap(), sum);
        }
    }

    #[test]
    fn the_sum_does_not_depend_on_threads() {
        let tensor = Tensor::new(values(300_001), &Device::Cpu).unwrap();
        let run = |n_threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
            pool.install(|| sum_of_squares(&tensor).unwrap().to_bits())
        };
        assert_eq!(run(1), run(5));
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn the_kernels_agree_with_the_reference_and_repeat_their_bits() {
        let Some(card) = crate::test_support::card() else { return };
        for n in [1, 7, 1023, 16_384, 16_385, 100_003, 5_000_000] {
            let host = Tensor::new(values(n), &Device::Cpu).unwrap();
            let tensor = host.to_device(&card).unwrap();
            let (sum, exact) = (sum_of_squares(&tensor).unwrap(), sum_of_squares(&host).unwrap());
            // Both add in f64, in different orders.
            assert!((sum - exact).abs() <= 1e-12 * exact, "{n}: {sum} against {exact}");
            assert_eq!(sum_of_squares(&tensor).unwrap().to_bits(), sum.to_bits());
            // A start that is no multiple of 16 bytes takes another path, with the same order of additions.
            let padded = Tensor::cat(&[&tensor.narrow(0, 0, 1).unwrap(), &tensor], 0).unwrap();
            assert_eq!(sum_of_squares(&padded.narrow(0, 1, n).unwrap()).unwrap().to_bits(), sum.to_bits());
        }
        for bad in [f32::NAN, f32::INFINITY] {
            let mut values = values(20_000);
            values[17_000] = bad;
            assert!(!sum_of_squares(&Tensor::new(values, &card).unwrap()).unwrap().is_finite());
        }
        let wide = Tensor::zeros((2, 4), DType::F32, &card).unwrap();
        assert!(sum_of_squares(&wide.narrow(1, 0, 2).unwrap()).is_err());
    }

    #[test]
    fn a_gradient_that_is_not_finite_is_seen() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut values = values(20_000);
            values[17_000] = bad;
            assert!(!sum_of_squares(&Tensor::new(values, &Device::Cpu).unwrap()).unwrap().is_finite());
        }
    }

    #[test]
    fn clipping_only_shrinks() {
        assert_eq!(clip_factor(0.5, 1.0), 1.0);
        assert_eq!(clip_factor(100.0, 0.0), 1.0);
        assert!((clip_factor(4.0, 1.0) - 0.25).abs() < 1e-6);
        assert!(clip_factor(f64::NAN, 1.0).is_nan());
    }
}
