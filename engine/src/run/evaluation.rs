//! Loss on held-out examples, what counts as better, and when to give up.

use super::checkpoint::{Best, State};
use crate::config::Settings;

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
