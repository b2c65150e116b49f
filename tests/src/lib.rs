//! Shared by the whole-program tests.

pub mod hearth;
pub mod tiny_model;
