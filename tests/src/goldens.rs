//! What the goldens' Python scripts write and more than one test reads.

use std::collections::HashMap;

use candle_core::Tensor;
use hearth_engine::config::Target;
use hearth_engine::data::Batch;
use hearth_engine::model::Adapter;

/// Token ids and which of them are learned: `learned[i]` says that token `i` is predicted from those before it.
#[derive(Clone, Debug, serde::Deserialize)]
#[allow(missing_docs)]
pub struct Document {
    pub ids: Vec<u32>,
    pub learned: Vec<bool>,
}

/// The documents laid end to end.
pub fn batch_of<'a>(documents: impl IntoIterator<Item = &'a Document>) -> Batch {
    Batch::from_documents(documents.into_iter().map(|d| (&d.ids[..], &d.learned[..])))
}

/// PEFT's name of one half (`A` or `B`) of an adapted layer.
pub fn key(layer: usize, target: Target, half: &str) -> String {
    format!("base_model.model.model.layers.{layer}.{}.lora_{half}.weight", target.module())
}

/// Fills the adapter from the tensors `<prefix><key>`.
///
/// # Panics
/// One is missing or of another size.
pub fn fill(adapter: &mut Adapter, tensors: &HashMap<String, Tensor>, prefix: &str) {
    for (layer, target) in adapter.names().collect::<Vec<_>>() {
        let [a, b] = ["A", "B"].map(|half| values(tensors, &format!("{prefix}{}", key(layer, target, half))));
        adapter.set(layer, target, &a, &b).expect("the golden adapter has the sizes of the model's");
    }
}

/// A tensor's values, row-major.
///
/// # Panics
/// There is none of this name, or it is not f32.
pub fn values(tensors: &HashMap<String, Tensor>, name: &str) -> Vec<f32> {
    let Some(tensor) = tensors.get(name) else { panic!("no golden {name}") };
    tensor.flatten_all().and_then(|t| t.to_vec1()).unwrap_or_else(|error| panic!("golden {name}: {error}"))
}

/// `‖got - want‖ / ‖want‖`
///
/// # Panics
/// The lengths differ.
pub fn relative_error(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let difference = norm(&mut got.iter().zip(want).map(|(g, w)| f64::from(*g) - f64::from(*w)));
    difference / norm(&mut want.iter().map(|w| f64::from(*w)))
}
