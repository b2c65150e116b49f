//! AdamW over one flat buffer, with 32-bit or block-wise 8-bit moments.
//!
//! With the gradient `g` (already multiplied with the clipping factor), step `t` from 1 (Loshchilov & Hutter 2017,
//! arXiv:1711.05101, algorithm 2; bias correction as in Kingma & Ba 2014, arXiv:1412.6980):
//!
//! ```text
//! m <- β1 m + (1 - β1) g                     v <- β2 v + (1 - β2) g²
//! p <- (1 - η λ) p - η / (1 - β1ᵗ) · m / (√v / √(1 - β2ᵗ) + ε)
//! ```
//!
//! 8-bit moments are one byte a value in the dynamic map and one f32 absmax per block of 256 (Dettmers et al. 2021,
//! arXiv:2110.02861): a block is dequantised, `m` and `v` are advanced in f32, the parameters move with the f32 moments,
//! and only then are the moments quantised again. 2 + 8/256 bytes a parameter instead of 8. This is bitsandbytes'
//! block-wise AdamW with three choices where its own backends differ: decay comes before the update, as in PyTorch; the
//! nearest code is exact, as in CUDA; a tiny negative `m` may become 0, as on the processor. Blocks are counted over the
//! flat buffer: matrices whose gradients differ by orders of magnitude must not share one (start each at a multiple of
//! 256), or the smaller second moments round to zero and their parameters jump.
//!
//! All arithmetic is f32; the factors that don't depend on the element are computed in f64. Elements are independent, so
//! the result doesn't depend on the number of threads. A card gives the same bits as the processor.

use std::collections::HashMap;

use candle_core::{CpuStorage, DType, Device, InplaceOp2, Layout, Result, Tensor, bail};
#[cfg(feature = "cuda")]
use candle_core::{CudaDevice, CudaStorage, backend::BackendStorage};
use rayon::prelude::*;

#[cfg(feature = "cuda")]
use super::cuda;
use super::dynamic8::{BLOCK, SIGNED, UNSIGNED};
use super::host;
use super::memory::{Held, Site};
use super::upload::copy;

/// What is the same for every element of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update {
    /// Rate of this step, η.
    pub learning_rate: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment, ε.
    pub epsilon: f64,
    /// Decoupled weight decay, λ.
    pub weight_decay: f64,
    /// Number of this step, from 1.
    pub step: usize,
    /// Gradients are multiplied with this before anything else (clipping); 1 leaves them.
    pub gradient_scale: f64,
}

/// Running averages of the gradient (`m`) and its square (`v`) for a flat buffer of `n` parameters.
#[derive(Clone, Debug)]
pub enum Moments {
    /// 32-bit floats.
    F32 {
        /// First moment, f32 `[n]`.
        m: Tensor,
        /// Second moment, f32 `[n]`.
        v: Tensor,
    },
    /// Codes of the dynamic map, one absmax per 256.
    U8 {
        /// First moment, codes of the signed map, u8 `[n]`.
        m: Tensor,
        /// Scales of `m`, f32 `[ceil(n / 256)]`.
        m_absmax: Tensor,
        /// Second moment, codes of the unsigned map, u8 `[n]`.
        v: Tensor,
        /// Scales of `v`, f32 `[ceil(n / 256)]`.
        v_absmax: Tensor,
    },
}

impl Moments {
    /// Moments before the first step, 32-bit, of memory that counts as `held`.
    pub fn f32(n: usize, device: &Device, held: &Held) -> Result<Self> {
        let zeros = || held.zeros(n, DType::F32, device, Site::Optimizer);
        Ok(Self::F32 { m: zeros()?, v: zeros()? })
    }

    /// Moments before the first step, 8-bit, of memory that counts as `held`.
    pub fn u8(n: usize, device: &Device, held: &Held) -> Result<Self> {
        let codes = || held.zeros(n, DType::U8, device, Site::Optimizer);
        let absmax = || held.zeros(n.div_ceil(BLOCK), DType::F32, device, Site::Optimizer);
        Ok(Self::U8 { m: codes()?, m_absmax: absmax()?, v: codes()?, v_absmax: absmax()? })
    }

    /// Bytes of the 32-bit moments of `n` parameters.
    pub const fn f32_bytes(n: usize) -> usize {
        8 * n
    }

    /// Bytes of the 8-bit moments of `n` parameters.
    pub const fn u8_bytes(n: usize) -> usize {
        2 * n + 8 * n.div_ceil(BLOCK)
    }

    /// The tensors by the names under which a checkpoint holds them. They are the live buffers, not copies.
    pub fn tensors(&self) -> Vec<(&'static str, &Tensor)> {
        match self {
            Self::F32 { m, v } => vec![("m", m), ("v", v)],
            Self::U8 { m, m_absmax, v, v_absmax } => {
                vec![("m_codes", m), ("m_absmax", m_absmax), ("v_codes", v), ("v_absmax", v_absmax)]
            }
        }
    }

    /// Copies a checkpoint's tensors into the buffers.
    ///
    /// # Errors
    /// Where one of [`Moments::tensors`] is missing or has another dtype or length. The buffers are then unchanged.
    pub fn load(&self, checkpoint: &HashMap<String, Tensor>) -> Result<()> {
        let mut pairs = Vec::new();
        for (name, buffer) in self.tensors() {
            let Some(saved) = checkpoint.get(name) else { bail!("the optimizer state has no tensor {name}") };
            if saved.dtype() != buffer.dtype() || saved.dims() != buffer.dims() {
                bail!(
                    "the optimizer state's {name} is {:?} {:?}, expected {:?} {:?}",
                    saved.dtype(),
                    saved.dims(),
                    buffer.dtype(),
                    buffer.dims()
                );
            }
            pairs.push((buffer, saved));
        }
        pairs.into_iter().try_for_each(|(buffer, saved)| copy(buffer, &saved.contiguous()?))
    }
}

/// Moves `params` (f32 `[n]`) and `moments` by one step along `grads` (f32 `[n]`, unchanged).
///
/// Gradients must be finite: whoever calls has just computed their norm and stops the run where it isn't. A NaN would go
/// into the parameters and 32-bit moments; 8-bit codes cannot hold one.
///
/// # Errors
/// Where lengths or dtypes differ, a tensor is not contiguous or `update.step` is 0.
pub fn adamw(params: &Tensor, grads: &Tensor, moments: &Moments, update: &Update) -> Result<()> {
    let n = params.elem_count();
    let expected = match moments {
        Moments::F32 { .. } => vec![n, n],
        Moments::U8 { .. } => vec![n, n.div_ceil(BLOCK), n, n.div_ceil(BLOCK)],
    };
    let got: Vec<usize> = moments.tensors().iter().map(|(_, tensor)| tensor.elem_count()).collect();
    if grads.elem_count() != n || got != expected {
        bail!("adamw: {n} parameters, {} gradients, moments of {got:?} elements", grads.elem_count());
    }
    if update.step == 0 {
        bail!("adamw: steps are counted from 1");
    }
    params.inplace_op2(grads, &AdamW { moments, factors: Factors::new(update) })
}

struct AdamW<'a> {
    moments: &'a Moments,
    factors: Factors,
}

impl InplaceOp2 for AdamW<'_> {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn cpu_fwd(
        &self,
        params: &mut CpuStorage,
        params_layout: &Layout,
        grads: &CpuStorage,
        grads_layout: &Layout,
    ) -> Result<()> {
        let params = host::values_mut::<f32>(params, params_layout)?;
        let grads = host::values::<f32>(grads, grads_layout)?;
        let factors = &self.factors;
        match self.moments {
            Moments::F32 { m, v } => host::write(m, |m| {
                host::write(v, |v| {
                    factors.step_f32(params, grads, m, v);
                    Ok(())
                })
            }),
            Moments::U8 { m, m_absmax, v, v_absmax } => host::write(m, |m| {
                host::write(m_absmax, |m_absmax| {
                    host::write(v, |v| {
                        host::write(v_absmax, |v_absmax| {
                            factors.step_u8(params, grads, (m, m_absmax), (v, v_absmax));
                            Ok(())
                        })
                    })
                })
            }),
        }
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        params: &mut CudaStorage,
        params_layout: &Layout,
        grads: &CudaStorage,
        grads_layout: &Layout,
    ) -> Result<()> {
        const N_THREADS: usize = 256; // as in the kernels
        let device = grads.device();
        let params = flat("adamw", cuda::matrix(params, params_layout)?, DType::F32)?;
        let grads = flat("adamw", cuda::matrix(grads, grads_layout)?, DType::F32)?;
        let n = params.n_rows * params.n_cols;
        let of = |tensor: &Tensor, dtype| flat("adamw", cuda::operand(tensor)?, dtype);
        let (function, n_thread_blocks, moments) = match self.moments {
            Moments::F32 { m, v } => {
                let moments = vec![of(m, DType::F32)?, of(v, DType::F32)?];
                ("adamw_f32", n.div_ceil(4 * N_THREADS), moments)
            }
            Moments::U8 { m, m_absmax, v, v_absmax } => {
                let m = [of(m, DType::U8)?, of(m_absmax, DType::F32)?];
                let v = [of(v, DType::U8)?, of(v_absmax, DType::F32)?];
                // Each thread block copies the maps first, so no more of them than run at a time: 4 a multiprocessor.
                let n_warps = N_THREADS / 32;
                let n_thread_blocks = n.div_ceil(BLOCK).div_ceil(n_warps).min(4 * n_multiprocessors(device)?);
                ("adamw_u8", n_thread_blocks, [m, v].concat())
            }
        };
        let mut operands = vec![params, grads];
        operands.extend(moments);
        // Four neighbours at a time.
        let vectors = operands.iter().all(|m| m.pointer.is_multiple_of(4 * m.dtype.size_in_bytes() as u64));
        let mut arguments: Vec<cuda::Argument> = operands.iter().map(cuda::Matrix::at).collect();
        arguments.push(n.into());
        arguments.push(vectors.into());
        arguments.extend(self.factors.in_order().map(cuda::Argument::from));
        KERNELS.launch(device, function, [n_thread_blocks, 1, 1], N_THREADS, 0, &arguments)
    }
}

#[cfg(feature = "cuda")]
const KERNELS: cuda::Kernels = cuda::kernels!(
    "adamw",
    "M_VALUES" => || SIGNED.value_bytes(),
    "M_MIDPOINTS" => || SIGNED.midpoint_bytes(),
    "V_VALUES" => || UNSIGNED.value_bytes(),
    "V_MIDPOINTS" => || UNSIGNED.midpoint_bytes()
);

/// Passes on an operand that is contiguous and of the given element type.
#[cfg(feature = "cuda")]
pub(super) fn flat(op: &str, operand: cuda::Matrix, dtype: DType) -> Result<cuda::Matrix> {
    if operand.n_rows > 1 && operand.stride != operand.n_cols {
        bail!("{op}: rows of {} elements lie {} apart, expected them adjacent", operand.n_cols, operand.stride);
    }
    if operand.dtype != dtype {
        bail!("{op}: an operand is {:?}, expected {dtype:?}", operand.dtype);
    }
    Ok(operand)
}

#[cfg(feature = "cuda")]
fn n_multiprocessors(device: &CudaDevice) -> Result<usize> {
    use candle_core::cuda::cudarc::driver::sys::CUdevice_attribute;
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
    let count = device.cuda_stream().context().attribute(attribute).map_err(candle_core::Error::wrap)?;
    Ok(count.max(1) as usize)
}

/// [`Update`] reduced to the factors of the formula.
struct Factors {
    gradient_scale: f32,
    beta1: f32,
    one_minus_beta1: f32,
    beta2: f32,
    one_minus_beta2: f32,
    /// `1 - η λ`.
    decay: f32,
    /// `η / (1 - β1ᵗ)`.
    step_size: f32,
    /// `√(1 - β2ᵗ)`.
    root_correction: f32,
    epsilon: f32,
}

impl Factors {
    fn new(update: &Update) -> Self {
        let correction = |beta: f64| 1.0 - beta.powf(update.step as f64);
        Self {
            gradient_scale: update.gradient_scale as f32,
            beta1: update.beta1 as f32,
            one_minus_beta1: (1.0 - update.beta1) as f32,
            beta2: update.beta2 as f32,
            one_minus_beta2: (1.0 - update.beta2) as f32,
            decay: (1.0 - update.learning_rate * update.weight_decay) as f32,
            step_size: (update.learning_rate / correction(update.beta1)) as f32,
            root_correction: correction(update.beta2).sqrt() as f32,
            epsilon: update.epsilon as f32,
        }
    }

    /// In the order of the kernels' parameters.
    #[cfg(feature = "cuda")]
    fn in_order(&self) -> [f32; 9] {
        let &Self { gradient_scale, beta1, one_minus_beta1, beta2, one_minus_beta2, .. } = self;
        let &Self { decay, step_size, root_correction, epsilon, .. } = self;
        [gradient_scale, beta1, one_minus_beta1, beta2, one_minus_beta2, decay, step_size, root_correction, epsilon]
    }

    /// The formula at the head of this file, for slices of one length.
    #[inline]
    fn advance(&self, params: &mut [f32], grads: &[f32], m: &mut [f32], v: &mut [f32]) {
        for (((p, &g), m), v) in params.iter_mut().zip(grads).zip(m).zip(v) {
            let g = g * self.gradient_scale;
            *m = *m * self.beta1 + self.one_minus_beta1 * g;
            *v = *v * self.beta2 + self.one_minus_beta2 * (g * g);
            let denominator = v.sqrt() / self.root_correction + self.epsilon;
            *p = *p * self.decay - self.step_size * (*m / denominator);
        }
    }

    fn step_f32(&self, params: &mut [f32], grads: &[f32], m: &mut [f32], v: &mut [f32]) {
        const CHUNK: usize = 16 * 1024;
        params
            .par_chunks_mut(CHUNK)
            .zip(grads.par_chunks(CHUNK))
            .zip(m.par_chunks_mut(CHUNK).zip(v.par_chunks_mut(CHUNK)))
            .for_each(|((params, grads), (m, v))| self.advance(params, grads, m, v));
    }

    /// `m` and `v` are codes and absmax.
    fn step_u8(&self, params: &mut [f32], grads: &[f32], m: (&mut [u8], &mut [f32]), v: (&mut [u8], &mut [f32])) {
        params
            .par_chunks_mut(BLOCK)
            .zip(grads.par_chunks(BLOCK))
            .zip(m.0.par_chunks_mut(BLOCK).zip(m.1))
            .zip(v.0.par_chunks_mut(BLOCK).zip(v.1))
            .with_min_len(16)
            .for_each(|(((params, grads), (m_codes, m_absmax)), (v_codes, v_absmax))| {
                let (mut m, mut v) = ([0f32; BLOCK], [0f32; BLOCK]);
                let (m, v) = (&mut m[..params.len()], &mut v[..params.len()]);
                SIGNED.dequantize_block(m_codes, *m_absmax, m);
                UNSIGNED.dequantize_block(v_codes, *v_absmax, v);
                self.advance(params, grads, m, v);
                *m_absmax = SIGNED.quantize_block(m, m_codes);
                *v_absmax = UNSIGNED.quantize_block(v, v_codes);
            });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nf4::tests::golden;

    /// The hyper-parameters written down in `tests/goldens/make/optimizer.py`; the rate changes with the step.
    fn update(golden: &HashMap<String, Tensor>, step: usize) -> Update {
        let rates = golden["learning_rates"].to_vec1::<f64>().unwrap();
        let scales = golden["gradient_scales"].to_vec1::<f64>().unwrap();
        Update {
            learning_rate: rates[step - 1],
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.01,
            step,
            gradient_scale: scales[step - 1],
        }
    }

    /// Runs every recorded step; returns the parameters before and after.
    fn replay(golden: &HashMap<String, Tensor>, moments: &Moments) -> (Vec<f32>, Vec<f32>) {
        let params = golden["params.initial"].copy().unwrap();
        let grads = &golden["grads"];
        for step in 1..=grads.dim(0).unwrap() {
            adamw(&params, &grads.get(step - 1).unwrap(), moments, &update(golden, step)).unwrap();
        }
        (golden["params.initial"].to_vec1().unwrap(), params.to_vec1().unwrap())
    }

    fn norm(values: impl Iterator<Item = f32>) -> f64 {
        values.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt()
    }

    /// Distance to `golden[name]` in units of the distance travelled.
    fn error(golden: &HashMap<String, Tensor>, name: &str, initial: &[f32], ours: &[f32]) -> f64 {
        let theirs = golden[name].to_vec1::<f32>().unwrap();
        norm(ours.iter().zip(&theirs).map(|(a, b)| a - b)) / norm(initial.iter().zip(&theirs).map(|(a, b)| a - b))
    }

    #[test]
    fn thirty_two_bit_steps_follow_pytorch() {
        let golden = golden("optimizer.safetensors");
        let moments = Moments::f32(golden["params.initial"].elem_count(), &Device::Cpu, &Held::new()).unwrap();
        let (initial, ours) = replay(&golden, &moments);
        let error = error(&golden, "params.torch", &initial, &ours);
        // Thirty steps of f32 rounding.
        assert!(error < 1e-5, "{error}");
    }

    #[test]
    fn eight_bit_steps_follow_bitsandbytes() {
        let golden = golden("optimizer.safetensors");
        let moments = Moments::u8(golden["params.initial"].elem_count(), &Device::Cpu, &Held::new()).unwrap();
        let (initial, ours) = replay(&golden, &moments);
        let error = error(&golden, "params.bnb8", &initial, &ours);
        assert!(error < 1e-3, "{error}");
        for (name, tensor) in moments.tensors() {
            let theirs = &golden[&format!("bnb8.{name}")];
            if tensor.dtype() == DType::U8 {
                let (ours, theirs) = (tensor.to_vec1::<u8>().unwrap(), theirs.to_vec1::<u8>().unwrap());
                let n_equal = ours.iter().zip(&theirs).filter(|(a, b)| a == b).count();
                // A last bit of rounding moves a value across a threshold once in a while.
                assert!(n_equal as f64 >= 0.999 * ours.len() as f64, "{name}: {n_equal} of {} codes", ours.len());
            } else {
                let (ours, theirs) = (tensor.to_vec1::<f32>().unwrap(), theirs.to_vec1::<f32>().unwrap());
                for (ours, theirs) in ours.iter().zip(&theirs) {
                    assert!((ours - theirs).abs() <= 2e-3 * theirs, "{name}: {ours} against {theirs}");
                }
            }
        }
    }

    #[test]
    fn eight_bit_moments_stay_near_the_thirty_two_bit_path() {
        let golden = golden("optimizer.safetensors");
        let n = golden["params.initial"].elem_count();
        let (initial, exact) = replay(&golden, &Moments::f32(n, &Device::Cpu, &Held::new()).unwrap());
        let (_, coarse) = replay(&golden, &Moments::u8(n, &Device::Cpu, &Held::new()).unwrap());
        let error =
            norm(exact.iter().zip(&coarse).map(|(a, b)| a - b)) / norm(exact.iter().zip(&initial).map(|(a, b)| a - b));
        assert!((1e-4..0.1).contains(&error), "{error}");
    }

    #[test]
    fn the_result_does_not_depend_on_threads() {
        let golden = golden("optimizer.safetensors");
        let n = golden["params.initial"].elem_count();
        let run = |n_threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
            pool.install(|| replay(&golden, &Moments::u8(n, &Device::Cpu, &Held::new()).unwrap()).1)
        };
        assert_eq!(run(1), run(3));
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn the_kernels_give_the_bits_of_the_reference() -> Result<()> {
        use crate::test_support::{card, random, values};

        let Some(card) = card() else { return Ok(()) };
        type New = fn(usize, &Device, &Held) -> Result<Moments>;
        type Bits = Vec<(&'static str, Vec<u32>)>;
        let run = |device: &Device, n: usize, offset: usize, new: New| -> Result<Bits> {
            // Several orders of magnitude, and a block of zeros.
            let vector = |seed: u64| -> Result<Tensor> {
                let value = |(i, x): (usize, f32)| if i / BLOCK == 1 { 0.0 } else { x.powi(5) };
                let values: Vec<f32> =
                    values(&random(&[n + offset], seed)?)?.into_iter().enumerate().map(value).collect();
                Tensor::from_vec(values, n + offset, device)?.narrow(0, offset, n)
            };
            let (params, moments) = (vector(0)?, new(n, device, &Held::new())?);
            for step in 1..=5 {
                let update = Update {
                    learning_rate: 1e-3,
                    beta1: 0.9,
                    beta2: 0.999,
                    epsilon: 1e-8,
                    weight_decay: 0.01,
                    step,
                    gradient_scale: 0.7,
                };
                adamw(&params, &vector(step as u64)?, &moments, &update)?;
            }
            let bits = |tensor: &Tensor| -> Result<Vec<u32>> {
                let values = tensor.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.to_vec1::<f32>()?;
                Ok(values.into_iter().map(f32::to_bits).collect())
            };
            let mut all = vec![("params", bits(&params)?)];
            for (name, tensor) in moments.tensors() {
                all.push((name, bits(tensor)?));
            }
            Ok(all)
        };
        // Partial vectors and blocks; an offset of 1 leaves no parameter at a multiple of 16 bytes.
        for n in [1, 255, 256, 257, 1000, 300_003] {
            for offset in [0, 1] {
                for new in [Moments::f32, Moments::u8] {
                    let (got, want) = (run(&card, n, offset, new)?, run(&Device::Cpu, n, offset, new)?);
                    for ((name, got), (_, want)) in got.iter().zip(&want) {
                        let n_equal = got.iter().zip(want).filter(|(a, b)| a == b).count();
                        assert_eq!(n_equal, want.len(), "{name} of {n} parameters at {offset}");
                    }
                }
            }
        }
        Ok(())
    }

    #[test]
    fn the_gradient_scale_is_the_same_as_scaled_gradients() {
        let device = &Device::Cpu;
        let grads = Tensor::new(&[0.5f32, -2.0, 8.0], device).unwrap();
        let mut update = Update {
            learning_rate: 0.1,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.0,
            step: 1,
            gradient_scale: 0.25,
        };
        let (a, b) = (Tensor::ones(3, DType::F32, device).unwrap(), Tensor::ones(3, DType::F32, device).unwrap());
        adamw(&a, &grads, &Moments::f32(3, device, &Held::new()).unwrap(), &update).unwrap();
        update.gradient_scale = 1.0;
        adamw(&b, &(grads * 0.25).unwrap(), &Moments::f32(3, device, &Held::new()).unwrap(), &update).unwrap();
        assert_eq!(a.to_vec1::<f32>().unwrap(), b.to_vec1::<f32>().unwrap());
    }

    #[test]
    fn saved_moments_continue_bit_for_bit() {
        let golden = golden("optimizer.safetensors");
        let n = golden["params.initial"].elem_count();
        for new in [Moments::f32, Moments::u8] {
            let moments = new(n, &Device::Cpu, &Held::new()).unwrap();
            let params = golden["params.initial"].copy().unwrap();
            let grads = golden["grads"].get(0).unwrap();
            adamw(&params, &grads, &moments, &update(&golden, 1)).unwrap();

            let saved: HashMap<String, Tensor> =
                moments.tensors().into_iter().map(|(name, t)| (name.to_string(), t.copy().unwrap())).collect();
            let (resumed, resumed_params) = (new(n, &Device::Cpu, &Held::new()).unwrap(), params.copy().unwrap());
            resumed.load(&saved).unwrap();

            adamw(&params, &grads, &moments, &update(&golden, 2)).unwrap();
            adamw(&resumed_params, &grads, &resumed, &update(&golden, 2)).unwrap();
            assert_eq!(params.to_vec1::<f32>().unwrap(), resumed_params.to_vec1::<f32>().unwrap());

            let mut broken = saved.clone();
            broken.remove(moments.tensors()[0].0);
            assert!(resumed.load(&broken).is_err());
        }
    }

    #[test]
    fn lengths_that_differ_and_step_zero_are_refused() {
        let device = &Device::Cpu;
        let update = Update {
            learning_rate: 0.1,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.0,
            step: 1,
            gradient_scale: 1.0,
        };
        let zeros = |n: usize| Tensor::zeros(n, DType::F32, device).unwrap();
        let moments = Moments::f32(4, device, &Held::new()).unwrap();
        assert!(adamw(&zeros(4), &zeros(3), &moments, &update).is_err());
        assert!(adamw(&zeros(3), &zeros(3), &moments, &update).is_err());
        assert!(adamw(&zeros(4), &zeros(4), &moments, &Update { step: 0, ..update }).is_err());
        assert!(adamw(&zeros(4), &zeros(4), &moments, &update).is_ok());
    }

    #[test]
    fn the_size_of_the_moments_is_what_the_plan_counts() {
        let bytes = |moments: &Moments| -> usize {
            moments.tensors().iter().map(|(_, t)| t.elem_count() * t.dtype().size_in_bytes()).sum()
        };
        assert_eq!(bytes(&Moments::f32(1000, &Device::Cpu, &Held::new()).unwrap()), Moments::f32_bytes(1000));
        assert_eq!(bytes(&Moments::u8(1000, &Device::Cpu, &Held::new()).unwrap()), Moments::u8_bytes(1000));
    }
}
