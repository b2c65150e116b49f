use hearth_engine::format;
use hearth_engine::hardware::here;
use hearth_engine::run::store::RATES;

use super::failure::{Exit, Failure};
use super::{Context, emit, hardware};

/// Runs whose process trained too few steps are not listed: they say nothing.
pub(crate) fn run(context: &Context) -> Result<Exit, Failure> {
    let hardware = hardware::with_rates(here()?, &context.runs_dir.join(RATES));
    let past = &hardware.measurements.predictions;
    if context.json {
        context.print_json(past)?;
        return Ok(Exit::Done);
    }
    if past.is_empty() {
        emit(&format!("No run on {} has been compared with its prediction yet.", hardware.device_name()))?;
        return Ok(Exit::Done);
    }
    let off = |said: f64, was: f64| format!("{:+.1} %", 100.0 * (was / said - 1.0));
    for p in past {
        let rehearsed = p
            .rehearsed_s
            .map_or_else(String::new, |s| format!(", rehearsed {} ({})", format::duration(s), off(s, p.measured_s)));
        emit(&format!(
            "{}  {}: {} took {}; planned {} ({}){rehearsed}; memory {} of {} planned ({})",
            format::moment(p.time_ms),
            p.run_id,
            format::counted(p.n_steps, "step"),
            format::duration(p.measured_s),
            format::duration(p.predicted_s),
            off(p.predicted_s, p.measured_s),
            format::bytes(p.measured_bytes),
            format::bytes(p.predicted_bytes),
            off(p.predicted_bytes as f64, p.measured_bytes as f64),
        ))?;
    }
    Ok(Exit::Done)
}
