use hearth_engine::{format, run};

use super::failure::{Exit, Failure};
use super::{Context, emit};

pub(crate) fn run(context: &Context) -> Result<Exit, Failure> {
    let runs = run::list(&context.runs_dir);
    if context.json {
        context.print_json(&runs)?;
        return Ok(Exit::Done);
    }
    if runs.is_empty() {
        emit(&format!("No runs in {}.", context.runs_dir.display()))?;
        return Ok(Exit::Done);
    }
    let width = runs.iter().map(|r| r.id.chars().count()).max().unwrap_or(0);
    for run in runs {
        let loss = run.loss.map_or_else(|| format::UNKNOWN.into(), format::loss);
        let evaluation = run.eval_loss.map_or_else(|| format::UNKNOWN.into(), format::loss);
        let padding = " ".repeat(width - run.id.chars().count());
        emit(&format!(
            "{}{padding}  {:<11}  step {} of {}  loss {loss}  evaluation {evaluation}  {}",
            run.id,
            run.state.word(),
            run.step,
            run.n_steps,
            format::moment(run.updated_ms),
        ))?;
    }
    Ok(Exit::Done)
}
