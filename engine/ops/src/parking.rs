//! Values parked in system memory: copied out of the device's and back while it computes.
//!
//! A card's bus carries them on a stream of its own, so a copy costs time only where somebody waits for it. The order is
//! kept by two events: a copy starts when all that was asked of the device before it is done, and what is asked after
//! [`Parking::wait`] starts when the copy is done. On the processor both are copies in its one memory, at once.

use candle_core::{DType, Device, Result, Tensor, bail};

#[cfg(feature = "cuda")]
use super::cuda::{HostPlaces, operand};

/// Places of one size in system memory.
pub struct Parking(Places);

enum Places {
    Processor(Vec<Tensor>),
    #[cfg(feature = "cuda")]
    Card(HostPlaces),
}

impl Parking {
    /// `n_places` places for `elements` values of `dtype` each, for tensors on `device`.
    ///
    /// # Errors
    /// Where the system has not so much memory to give (on a card: to pin).
    pub fn new(n_places: usize, elements: usize, dtype: DType, device: &Device) -> Result<Self> {
        #[cfg(feature = "cuda")]
        if device.is_cuda() {
            return Ok(Self(Places::Card(HostPlaces::new(n_places, elements * dtype.size_in_bytes(), device)?)));
        }
        let place = |_| Tensor::zeros(elements, dtype, device);
        Ok(Self(Places::Processor((0..n_places).map(place).collect::<Result<_>>()?)))
    }

    /// Copies `src`, contiguous and no larger than a place, to place `place`. Until [`Self::wait`] it must not be written.
    ///
    /// # Errors
    /// Where `src` is not contiguous or too large, or the device refuses.
    pub fn put(&self, place: usize, src: &Tensor) -> Result<()> {
        contiguous("put", src)?;
        match &self.0 {
            Places::Processor(places) => places[place].slice_set(&src.flatten_all()?, 0, 0),
            #[cfg(feature = "cuda")]
            Places::Card(places) => places.put(place, operand(&src.flatten_all()?)?),
        }
    }

    /// Copies what is at place `place` to `dst`, contiguous and no larger than what was put there. Until [`Self::wait`] it must be
    /// neither read nor written.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn fetch(&self, place: usize, dst: &Tensor) -> Result<()> {
        contiguous("fetch", dst)?;
        match &self.0 {
            Places::Processor(places) => {
                let dst = dst.flatten_all()?;
                dst.slice_set(&places[place].narrow(0, 0, dst.elem_count())?, 0, 0)
            }
            #[cfg(feature = "cuda")]
            Places::Card(places) => places.fetch(place, operand(&dst.flatten_all()?)?),
        }
    }

    /// What is asked of the device from here on starts when the last copy to or from place `place` is done.
    ///
    /// # Errors
    /// Where the device refuses.
    pub fn wait(&self, place: usize) -> Result<()> {
        match &self.0 {
            Places::Processor(places) => {
                debug_assert!(place < places.len());
                Ok(())
            }
            #[cfg(feature = "cuda")]
            Places::Card(places) => places.wait(place),
        }
    }
}

fn contiguous(what: &str, tensor: &Tensor) -> Result<()> {
    if !tensor.is_contiguous() {
        bail!("parking: {what} of {:?}, expected contiguous values", tensor.layout());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{random, values, zeros};

    #[test]
    fn what_was_put_comes_back_also_in_part() -> Result<()> {
        #[cfg_attr(not(feature = "cuda"), allow(unused_mut))]
        let mut devices = vec![Device::Cpu];
        #[cfg(feature = "cuda")]
        devices.extend(crate::test_support::card());
        for device in devices {
            let parking = Parking::new(2, 12, DType::F32, &device)?;
            let (a, b) = (random(&[4, 3], 1)?, random(&[2, 3], 2)?);
            let on = |t: &Tensor| t.to_device(&device);
            let buffer = on(&zeros(&[6, 3])?)?;
            // Kept until they have gone: memory that is given back may be written by others.
            let sources = [on(&a)?, on(&b)?];
            parking.put(0, &sources[0])?;
            parking.put(1, &sources[1])?;
            parking.wait(0)?;
            parking.fetch(0, &buffer.narrow(0, 1, 4)?)?;
            parking.wait(0)?;
            assert_eq!(values(&buffer.narrow(0, 1, 4)?.to_device(&Device::Cpu)?)?, values(&a)?);
            parking.fetch(1, &buffer.narrow(0, 5, 1)?)?;
            parking.wait(1)?;
            assert_eq!(values(&buffer.narrow(0, 5, 1)?.to_device(&Device::Cpu)?)?, values(&b.narrow(0, 0, 1)?)?);
            assert!(parking.put(0, &on(&random(&[5, 3], 3)?)?).is_err(), "larger than its place");
            assert!(parking.put(0, &on(&random(&[3, 4], 3)?)?.t()?).is_err(), "not contiguous");
        }
        Ok(())
    }

    /// Copies run beside the computing and still see what came before them.
    #[cfg(feature = "cuda")]
    #[test]
    fn a_copy_waits_for_the_work_before_it_and_the_work_after_it_waits_for_the_copy() -> Result<()> {
        let Some(card) = crate::test_support::card() else { return Ok(()) };
        let n = 1 << 22;
        let parking = Parking::new(3, n, DType::F32, &card)?;
        let buffers = [0, 1].map(|_| Tensor::zeros((1, n), DType::F32, &card));
        let [a, b] = buffers;
        let (a, b) = (a?, b?);
        for round in 0..20u64 {
            let x = random(&[1, n], round)?.to_device(&card)?;
            crate::lora::place(&a, &x)?;
            parking.put(0, &a)?;
            parking.wait(0)?;
            crate::upload::clear(&a)?;
            parking.fetch(0, &b)?;
            parking.wait(0)?;
            crate::lora::place(&a, &b)?;
            let same = (&a - &x)?.abs()?.sum_all()?.to_scalar::<f32>()?;
            assert_eq!(same, 0.0, "round {round}");
        }
        Ok(())
    }
}
