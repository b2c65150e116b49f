//! How long planning takes: one whole plan with its reasons and counterfactuals, a reverse question, and the table of all models and
//! all cards. `cargo bench --bench plan`.

#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::time::Instant;

use hearth_engine::config::RunConfig;
use hearth_engine::data::DataStats;
use hearth_engine::hardware::{Hardware, profile, profiles};
use hearth_engine::model::{Catalogue, ModelShape};
use hearth_engine::plan::{assumed_examples, card_table, longest, plan};

fn main() {
    let config: RunConfig =
        serde_json::from_value(serde_json::json!({ "model": "m", "data": { "path": "d", "over_length": "truncate" } }))
            .expect("a config");
    let catalogue = Catalogue::bundled();
    let shape = |id: &str| -> &ModelShape { &catalogue.find(id).expect("of the catalogue").shape };
    let computer = |id: &str| -> Hardware { profile(id).expect("bundled").hardware() };
    // Most short, some long: the longest example is not taken for granted.
    let data = DataStats::of((0..5000).map(|i| {
        let tokens = 40 + (3000.0 * (f64::from(i) / 5000.0).powi(3)) as usize;
        (tokens, tokens / 2)
    }));
    println!("{:>10}  what", "median ms");
    for (model, card) in [
        ("llama-3.1-8b", "rtx-3060-12gb"),
        ("llama-3.1-8b", "rtx-4090-24gb"),
        ("llama-3.2-1b", "rtx-4060-8gb"),
        ("smollm2-135m", "no-card"),
        ("llama-3.1-70b", "rtx-4090-24gb"),
    ] {
        let (shape, hardware) = (shape(model), computer(card));
        let fits = plan(shape, &data, &config, &hardware).expect("planned").fits;
        let what = format!("plan of {model} on {card}, {}", if fits { "fits" } else { "does not fit" });
        show(&what, 200, || plan(shape, &data, &config, &hardware).expect("planned"));
    }
    let (shape, hardware) = (shape("llama-3.1-8b"), computer("rtx-3060-12gb"));
    show("longest sequence of llama-3.1-8b on rtx-3060-12gb", 50, || {
        longest(shape, &config, &hardware).expect("found")
    });
    let (models, cards): (Vec<_>, Vec<_>) = (catalogue.models.iter().collect(), profiles().iter().collect());
    let examples = |shape: &ModelShape| assumed_examples(2048.min(shape.max_positions));
    let what = format!("table of {} models and {} cards", models.len(), cards.len());
    show(&what, 5, || card_table(&models, &cards, &examples, &config));
}

fn show<T>(what: &str, n: usize, mut work: impl FnMut() -> T) {
    let mut times_ms: Vec<f64> = (0..n)
        .map(|_| {
            let begun = Instant::now();
            black_box(work());
            begun.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times_ms.sort_by(f64::total_cmp);
    println!("{:>10.2}  {what}", times_ms[times_ms.len() / 2]);
}
