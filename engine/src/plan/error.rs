use super::Remedy;
use crate::error::Explain;
use crate::format;
use crate::gpu_setup::ENGINE_VARIABLE;
use crate::ops::attention::HEAD_DIMS;

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum Error {
    #[error(
        "the run needs {} of {device} at the least settings allowed and {} are there for it: {} are missing",
        format::bytes(*needed_bytes), format::bytes(*budget_bytes),
        format::bytes(needed_bytes.saturating_sub(*budget_bytes))
    )]
    DoesNotFit { device: String, needed_bytes: u64, budget_bytes: u64, remedies: Vec<Remedy> },
    #[error(
        "{} of system memory are to be pinned for what waits there and {} are free",
        format::bytes(*needed_bytes), format::bytes(*free_bytes)
    )]
    NoHostMemory { needed_bytes: u64, free_bytes: u64 },
    #[error("micro_batch {micro_batch} times accumulation {accumulation} is not effective_batch {effective_batch}")]
    BatchContradiction { micro_batch: usize, accumulation: usize, effective_batch: usize },
    #[error("effective_batch {effective_batch} cannot be divided by {field} {value}")]
    BatchNotDivisible { field: &'static str, value: usize, effective_batch: usize },
    #[error("{device} does not compute in {compute}")]
    NoCompute { device: String, compute: &'static str, instead: &'static str },
    #[error("{device} has no kernels for heads {head_dim} wide; there are for {}", widths())]
    NoKernel { device: String, head_dim: usize },
    #[error("a base in {base} cannot be trained on in {compute}")]
    BaseContradiction { base: &'static str, compute: &'static str },
    #[error("{field} is {value}; it has to be {allowed}")]
    OutOfRange { field: &'static str, value: String, allowed: &'static str },
    #[error("no linear layer is chosen for the adapter (lora.targets is empty)")]
    NoTargets,
    #[error("{target} is listed twice in lora.targets")]
    RepeatedTarget { target: &'static str },
    #[error("a length of {length} tokens is beyond the {max_positions} the model was made for")]
    LengthPastModel { length: usize, max_positions: usize },
    #[error("the data has no example that can be used")]
    NoExamples,
    #[error("none of the {n_tokens} tokens of the data is learned: the model would not be trained on anything")]
    NothingLearned { n_tokens: usize },
    #[error("all {n_examples} examples are longer than {length} tokens; the shortest has about {shortest}")]
    AllTooLong { n_examples: usize, length: usize, shortest: usize },
}

fn widths() -> String {
    HEAD_DIMS.map(|width| width.to_string()).join(", ")
}

impl Explain for Error {
    fn code(&self) -> &'static str {
        match self {
            Error::DoesNotFit { .. } => "plan.does_not_fit",
            Error::NoHostMemory { .. } => "plan.no_host_memory",
            Error::BatchContradiction { .. } => "plan.batch_contradiction",
            Error::BatchNotDivisible { .. } => "plan.batch_not_divisible",
            Error::NoCompute { .. } => "plan.no_compute",
            Error::NoKernel { .. } => "plan.no_kernel",
            Error::BaseContradiction { .. } => "plan.base_contradiction",
            Error::OutOfRange { .. } => "plan.out_of_range",
            Error::NoTargets => "plan.no_targets",
            Error::RepeatedTarget { .. } => "plan.repeated_target",
            Error::LengthPastModel { .. } => "plan.length_past_model",
            Error::NoExamples => "plan.no_examples",
            Error::NothingLearned { .. } => "plan.nothing_learned",
            Error::AllTooLong { .. } => "plan.all_too_long",
        }
    }

    fn next_step(&self) -> String {
        match self {
            Error::DoesNotFit { remedies, .. } => {
                let steps: Vec<&str> = remedies.iter().map(|remedy| remedy.words.as_str()).collect();
                format!("Least harm first: {}", steps.join(" Then: "))
            }
            Error::NoHostMemory { .. } => {
                "Leave embedding_on_host, offload_inputs and n_layers_streamed out: a plan lets wait there what has room.".into()
            }
            Error::BatchContradiction { micro_batch, accumulation, .. } => format!(
                "Leave one of the three out, or set effective_batch to {}.",
                micro_batch.saturating_mul(*accumulation)
            ),
            Error::BatchNotDivisible { field, .. } => {
                format!("Leave {field} out, or choose one that divides effective_batch without a rest.")
            }
            Error::NoCompute { instead, .. } => format!("Leave compute out, or set it to {instead}."),
            Error::NoKernel { .. } => {
                format!("Train this model on the processor: set {ENGINE_VARIABLE} to processor in the environment.")
            }
            Error::BaseContradiction { .. } => "Leave base out, set it to nf4, or leave compute out.".into(),
            Error::OutOfRange { field, allowed, .. } => format!("Set {field} to a value that is {allowed}."),
            Error::NoTargets => "Choose at least one, or leave lora.targets out for all seven.".into(),
            Error::RepeatedTarget { .. } => "List each layer once.".into(),
            Error::LengthPastModel { max_positions, .. } => {
                format!("Choose a length of at most {max_positions}, or leave it out.")
            }
            Error::NoExamples => "Look at the problems listed for the data; each names its line and the reason.".into(),
            Error::NothingLearned { .. } => {
                "Look at the examples in the preview: only answers are learned, and there is none.".into()
            }
            Error::AllTooLong { shortest, .. } => {
                format!("Choose a length of at least {shortest}, or set over_length to truncate.")
            }
        }
    }
}
