//! Loss on held-out examples, what counts as better, and when to give up.

use super::checkpoint::{Best, State};
use crate::config::Settings;
use crate::data::Sample;

/// Held-out examples in micro-batches no larger than the buffers: in the file's order, filled one after the other. The
/// same groups every time, so two evaluations differ only by the adapter.
pub(crate) fn groups(samples: &[Sample], settings: &Settings) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut n_tokens = 0;
    for (i, sample) in samples.iter().enumerate() {
        let n = sample.input_ids.len();
        match groups.last_mut() {
            Some(group) if n_tokens + n <= settings.max_tokens() => group.push(i),
            _ => {
                groups.push(vec![i]);
                n_tokens = 0;
            }
        }
        n_tokens += n;
    }
    groups
}

/// True where the evaluation after `step` steps is due. The last step is always evaluated.
pub(crate) fn is_due(step: usize, settings: &Settings) -> bool {
    step == settings.n_steps
        || (settings.evaluate_every_steps > 0 && step.is_multiple_of(settings.evaluate_every_steps))
}

/// Takes the loss of an evaluation into the state; true where it is the lowest so far.
pub(crate) fn take(state: &mut State, loss: f64) -> bool {
    let better = state.best.is_none_or(|best| loss < best.loss);
    if better {
        state.best = Some(Best { step: state.step, loss });
        state.n_not_improved = 0;
    } else {
        state.n_not_improved += 1;
    }
    better
}

/// True where `patience` evaluations in a row brought nothing.
pub(crate) fn is_hopeless(state: &State, settings: &Settings) -> bool {
    settings.patience.is_some_and(|patience| state.n_not_improved >= patience.max(1))
}
