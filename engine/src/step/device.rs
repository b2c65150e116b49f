//! Where a step computes.

use candle_core::Device;

use super::Error;
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

#[cfg(feature = "cuda")]
fn card() -> Result<Device, Error> {
    crate::ops::card(0).map_err(|error| Error::NoCard { reason: error.to_string() })
}

#[cfg(not(feature = "cuda"))]
fn card() -> Result<Device, Error> {
    Err(Error::NoCard { reason: "this engine was built for the processor only".into() })
}
