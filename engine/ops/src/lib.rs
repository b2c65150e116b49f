//! The operations of a training step: one file each, with its documentation, its plain reference on the processor and its tests.
//!
//! Every operation is a function over candle tensors that already exist: it writes into its first argument (`dst`) and
//! allocates nothing. `dst` and the other operands never share a storage, except where a function says that it works
//! inside one buffer. Matrices are row-major with a free row stride, so a view of some columns of a wider buffer is an
//! operand like any other. Results do not depend on the number of threads.

pub mod adamw;
pub mod attention;
pub mod attention_cached;
pub mod cross_entropy;
pub mod dropout;
pub mod gemm;
pub mod grad_norm;
pub mod lora;
pub mod memory;
pub mod nf4;
pub mod padded;
pub mod parking;
pub mod rms_norm;
pub mod rope;
pub mod rows;
pub mod swiglu;
pub mod upload;

mod cpu;
#[cfg(feature = "cuda")]
mod cublas;
#[cfg(feature = "cuda")]
mod cuda;
pub(crate) mod dynamic8;
mod host;
mod math;
#[cfg(test)]
pub(crate) mod test_support;

pub use candle_core::Result;
#[cfg(feature = "cuda")]
pub use cuda::{Ballast, Pool, card, has_bf16, leave, pool, used_bytes, uuid};

/// Whether this build has kernels for a graphics card beside the references.
pub const HAS_KERNELS: bool = cfg!(feature = "cuda");
