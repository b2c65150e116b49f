//! Random tensors, closeness and finite differences for the tests of the operations.

use candle_core::{Device, Result, Tensor};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Uniform in [-1, 1).
pub(crate) fn random(shape: &[usize], seed: u64) -> Result<Tensor> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let data: Vec<f32> = (0..shape.iter().product::<usize>()).map(|_| rng.random_range(-1.0..1.0)).collect();
    Tensor::from_vec(data, shape, &Device::Cpu)
}

pub(crate) fn zeros(shape: &[usize]) -> Result<Tensor> {
    Tensor::zeros(shape, candle_core::DType::F32, &Device::Cpu)
}

pub(crate) fn values(t: &Tensor) -> Result<Vec<f32>> {
    t.contiguous()?.flatten_all()?.to_vec1()
}

/// Fails unless every element agrees within `tolerance` of the largest magnitude.
#[track_caller]
pub(crate) fn assert_close(got: &Tensor, want: &Tensor, tolerance: f32) -> Result<()> {
    assert_eq!(got.dims(), want.dims());
    let (got, want) = (values(got)?, values(want)?);
    let scale = want.iter().fold(1e-3f32, |m, x| m.max(x.abs()));
    for (i, (g, w)) in got.iter().zip(&want).enumerate() {
        assert!((g - w).abs() <= tolerance * scale, "element {i}: got {g}, want {w}, scale {scale}");
    }
    Ok(())
}

/// Checks `dx`, the claimed gradient of `sum(dy * f(x))`, against central differences of every element of `x`.
#[track_caller]
pub(crate) fn assert_gradient(
    f: impl Fn(&Tensor) -> Result<Tensor>,
    x: &Tensor,
    dy: &Tensor,
    dx: &Tensor,
) -> Result<()> {
    const STEP: f32 = 1e-2;
    let objective = |x: &Tensor| -> Result<f64> {
        let y = values(&f(x)?)?;
        Ok(y.iter().zip(values(dy)?).map(|(y, d)| *y as f64 * d as f64).sum())
    };
    let base = values(x)?;
    let got = values(dx)?;
    let scale = got.iter().fold(1e-3f32, |m, g| m.max(g.abs()));
    for i in 0..base.len() {
        let moved = |by: f32| {
            let mut data = base.clone();
            data[i] += by;
            Tensor::from_vec(data, x.dims(), &Device::Cpu)
        };
        // Richardson: error O(STEP^4), so a step large enough for f32 is still exact enough.
        let central =
            |h: f32| -> Result<f64> { Ok((objective(&moved(h)?)? - objective(&moved(-h)?)?) / (2.0 * h as f64)) };
        let numeric = (4.0 * central(STEP)? - central(2.0 * STEP)?) / 3.0;
        let error = (numeric - got[i] as f64).abs();
        assert!(error <= 2e-3 * scale as f64, "element {i}: gradient {}, finite difference {numeric}", got[i]);
    }
    Ok(())
}

/// The card, for tests of kernels; `None`, with a sentence, where there is none.
#[cfg(feature = "cuda")]
pub(crate) fn card() -> Option<Device> {
    let card = crate::cuda::card(0);
    if let Err(error) = &card {
        println!("skipped: this test needs a graphics card ({error})");
    }
    card.ok()
}

/// Whether there are kernels for `dtype` on the card, with a sentence where there are none.
#[cfg(feature = "cuda")]
pub(crate) fn computes_in(card: &Device, dtype: candle_core::DType) -> Result<bool> {
    let computes = dtype != candle_core::DType::BF16 || crate::has_bf16(card)?;
    if !computes {
        println!("skipped: this part of the test needs kernels for bf16");
    }
    Ok(computes)
}

/// Runs `f` on the processor in f32 and on the card in `dtype`, from the same values, and compares all results.
///
/// The f32 tensors among `inputs` are rounded to `dtype` first, so the difference is what the kernel itself rounds. Where an operand
/// stays f32 in every precision (a norm's weight, a log-sum-exp), `f` casts it back.
#[cfg(feature = "cuda")]
#[track_caller]
pub(crate) fn assert_same_on_card(
    card: &Device,
    inputs: &[Tensor],
    (dtype, tolerance): (candle_core::DType, f32),
    f: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<()> {
    use candle_core::DType::F32;
    if !computes_in(card, dtype)? {
        return Ok(());
    }
    let rounded: Vec<Tensor> = inputs
        .iter()
        .map(|t| if t.dtype() == F32 { t.to_dtype(dtype) } else { Ok(t.clone()) })
        .collect::<Result<_>>()?;
    let on_host: Vec<Tensor> = rounded
        .iter()
        .map(|t| if t.dtype() == dtype { t.to_dtype(F32) } else { Ok(t.clone()) })
        .collect::<Result<_>>()?;
    let on_card: Vec<Tensor> = rounded.iter().map(|t| t.to_device(card)).collect::<Result<_>>()?;
    let (got, want) = (f(&on_card)?, f(&on_host)?);
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(&want) {
        assert_close(&got.to_device(&Device::Cpu)?.to_dtype(F32)?, want, tolerance)?;
    }
    Ok(())
}
