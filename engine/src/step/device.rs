//! Where a step computes.

use candle_core::Device;

use super::Error;
use crate::config::ComputeDtype;
use crate::hardware::TrainOn;

/// The device that settings ask for: the processor, or the first card.
///
/// # Errors
/// [`Error::NoCard`] where this engine was built without kernels, or the card's driver refuses.
pub fn device(train_on: TrainOn) -> Result<Device, Error> {
    match train_on {
        TrainOn::Processor => Ok(Device::Cpu),
        TrainOn::Card => card(),
    }
}

/// Fails where a device that is there has no kernels for what the settings compute in: settings may come from another computer.
///
/// # Errors
/// [`Error::NoBf16`], and [`Error::NoCard`] where no kernel can be loaded at all.
pub fn check_compute(device: &Device, compute: ComputeDtype) -> Result<(), Error> {
    #[cfg(feature = "cuda")]
    if device.is_cuda() && compute == ComputeDtype::Bf16 {
        let has_bf16 = crate::ops::has_bf16(device).map_err(|error| Error::NoCard { reason: error.to_string() })?;
        return if has_bf16 { Ok(()) } else { Err(Error::NoBf16) };
    }
    let _ = (device, compute);
    Ok(())
}

#[cfg(feature = "cuda")]
fn card() -> Result<Device, Error> {
    crate::ops::card(0).map_err(|error| Error::NoCard { reason: error.to_string() })
}

#[cfg(not(feature = "cuda"))]
fn card() -> Result<Device, Error> {
    Err(Error::NoCard { reason: "this engine was built for the processor only".into() })
}
