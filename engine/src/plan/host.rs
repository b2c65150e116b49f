//! System memory that waits for a card: pinned, since a card reads and writes it over the bus by itself.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::propose::Task;
use super::{PlanItem, beside};
use crate::config::{RunConfig, Settings};
use crate::hardware::TrainOn;

/// Of the system memory that is free, what a plan pins for what waits there.
const PINNED_SHARE: f64 = 0.5;

/// System memory that a run on a card pins for what waits there, in bytes. What a process of any kind takes is not counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct HostMemory {
    /// Where the bytes go; their sum is `bytes`.
    pub items: Vec<PlanItem>,
    /// All of it.
    #[ts(type = "number")]
    pub bytes: u64,
    /// What a plan pins at most: pinned memory is nobody else's, whatever they need.
    #[ts(type = "number")]
    pub budget_bytes: u64,
    /// What is free at all.
    #[ts(type = "number")]
    pub free_bytes: u64,
}

impl Task<'_> {
    /// Most bytes of system memory that a plan pins.
    pub(super) fn pinned_bytes(&self) -> u64 {
        (self.hardware.memory_available_bytes as f64 * PINNED_SHARE) as u64
    }

    /// What waits in system memory beside the card; `None` where the run trains in system memory.
    pub(super) fn host(&self, settings: &Settings) -> Option<HostMemory> {
        let items = beside::host_items(self.shape, settings);
        (self.hardware.train_on == TrainOn::Card).then(|| HostMemory {
            bytes: items.iter().map(|item| item.bytes).fold(0, u64::saturating_add),
            items,
            budget_bytes: self.pinned_bytes(),
            free_bytes: self.hardware.memory_available_bytes,
        })
    }

    /// Whether the embedding leaves a card for system memory: wherever it can, since that is exact and costs nothing to speak of.
    pub(super) fn embedding_on_host(&self, config: &RunConfig) -> bool {
        let can = self.hardware.train_on == TrainOn::Card && !self.shape.tied;
        let bytes = (self.shape.vocab_rows * self.shape.hidden) as u64 * self.compute(config).size_bytes();
        let has_room = self.hardware.memory_available_bytes / 4 > bytes;
        can && config.embedding_on_host.unwrap_or(has_room)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{computer, examples, fixed, for_many, llama_8b};
    use super::super::{Plan, plan};
    use crate::error::Explain;

    #[test]
    fn what_waits_in_system_memory_is_listed_and_never_more_than_a_plan_pins() {
        for_many(|_, hardware, plan| {
            assert_eq!(plan.host.is_some(), hardware.training_card().is_some());
            let Some(host) = &plan.host else { return };
            assert_eq!(host.items.iter().map(|item| item.bytes).sum::<u64>(), host.bytes);
            assert!(host.bytes <= host.budget_bytes && host.budget_bytes <= host.free_bytes, "{host:?}");
            let listed = |name: &str| host.items.iter().any(|item| item.name == name && item.bytes > 0);
            let settings = &plan.settings;
            assert_eq!(listed("embeddings"), settings.embedding_on_host);
            assert_eq!(
                (listed("parked"), listed("streamed")),
                (settings.offload_inputs, settings.n_layers_streamed > 0)
            );
        });
    }

    #[test]
    fn what_is_to_wait_in_system_memory_by_hand_is_warned_of_and_refused_where_there_is_none() {
        let (shape, data, mut hardware) = (llama_8b(), examples(900, 50, 1000), computer("rtx-3060-12gb"));
        let mut asked = fixed(1024, 1, 16, 16);
        asked.n_layers_streamed = Some(shape.n_layers);
        let mut plan_with = |free_bytes: u64| {
            hardware.memory_available_bytes = free_bytes;
            plan(&shape, &data, &asked, &hardware).expect("planned")
        };
        let warned = |plan: &Plan| plan.warnings.iter().any(|warning| warning.code == "much_host_memory");
        let (roomy, tight, none) = (plan_with(20 << 30), plan_with(6 << 30), plan_with(3 << 30));
        assert!(!warned(&roomy) && roomy.require_fit().is_ok());
        assert!(warned(&tight) && tight.require_fit().is_ok());
        assert_eq!(none.require_fit().expect_err("refused").code(), "plan.no_host_memory");
    }
}
