//! Shared by the whole-program tests.

pub mod demo_model;
pub mod goldens;
pub mod hearth;
pub mod short;
pub mod step;
pub mod tiny_model;
