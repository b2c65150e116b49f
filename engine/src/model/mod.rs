//! Base models: what a folder or a GGUF file holds, checked before a weight is read, and the weights themselves.
//!
//! ```text
//! path ──> source (config_json | gguf::config) ──> ModelShape
//!            │
//!            ├──> tokenizer (tokenizer.json | gguf::vocabulary) ──> TokenizerBundle
//!            └──> tensor_f32(name) ──> weights: Model on a device; adapter: LoRA beside it
//! ```
//!
//! Everything here treats files as hostile: sizes are compared with the file's length before memory is asked for, and
//! nothing that could run code (pickle) is opened.

pub mod adapter;
pub mod catalogue;
mod config_json;
mod error;
mod folder;
pub(crate) mod gguf;
pub mod group;
pub mod safetensors;
pub mod shape;
pub mod source;
mod span;
pub(crate) mod stream;
mod text_file;
pub mod tokenizer;
pub mod weights;

pub use adapter::Adapter;
pub use catalogue::{Catalogue, CatalogueModel};
pub use error::Error;
pub use shape::ModelShape;
pub use source::{ModelSource, WeightDtype};
pub use tokenizer::TokenizerBundle;
pub use weights::Model;
