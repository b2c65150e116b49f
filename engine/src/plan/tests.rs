//! Properties of the plan over many shapes, data sets, wishes and computers (seeded, so a failure repeats).

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::config::{BaseFormat, ComputeDtype, LoraConfig, OptimizerKind, OverLength, Recompute, Target};
use crate::error::Explain;
use crate::hardware::{MeasuredRate, profile, profiles};
use crate::model::shape::Rope;

mod refused;
mod reverse;
mod said;
mod search;

fn shape(
    hidden: usize,
    n_layers: usize,
    n_heads: usize,
    n_kv_heads: usize,
    ffn: usize,
    vocab_rows: usize,
    tied: bool,
) -> ModelShape {
    ModelShape {
        family: "llama".into(),
        hidden,
        n_layers,
        n_heads,
        n_kv_heads,
        head_dim: hidden / n_heads,
        ffn,
        vocab_rows,
        rms_eps: 1e-5,
        rope: Rope { theta: 10_000.0, scaling: None },
        tied,
        max_positions: 8192,
    }
}

pub(super) fn llama_8b() -> ModelShape {
    shape(4096, 32, 32, 8, 14_336, 128_256, false)
}

pub(super) fn llama_1b() -> ModelShape {
    shape(2048, 16, 32, 8, 8192, 128_256, true)
}

fn smollm() -> ModelShape {
    shape(576, 30, 9, 3, 1536, 49_152, true)
}

/// `n` examples between `low` and `high` tokens, most of them short, half of the tokens learned.
pub(super) fn examples(n: usize, low: usize, high: usize) -> DataStats {
    DataStats::of((0..n).map(|i| {
        let place = (i + 1) as f64 / n as f64;
        let length = low + ((high - low) as f64 * place.powi(3)).round() as usize;
        (length, length / 2)
    }))
}

pub(super) fn config() -> RunConfig {
    RunConfig::new("model".into(), "data.jsonl".into())
}

/// Everything open fixed by hand.
pub(super) fn fixed(length: usize, micro_batch: usize, accumulation: usize, rank: usize) -> RunConfig {
    let mut config = config();
    config.data.length = Some(length);
    config.data.packing = Some(true);
    (config.micro_batch, config.accumulation) = (Some(micro_batch), Some(accumulation));
    config.lora.rank = rank;
    config.base = Some(BaseFormat::Nf4);
    config.recompute = Some(Recompute::C1);
    config.optimizer.kind = Some(OptimizerKind::AdamW8);
    config
}

pub(super) fn computer(id: &str) -> Hardware {
    profile(id).expect("bundled").hardware()
}

fn no_card() -> Hardware {
    computer("no-card")
}

fn random_config(rng: &mut ChaCha8Rng, hardware: &Hardware) -> RunConfig {
    let mut config = config();
    if rng.random_bool(0.4) {
        config.data.length = Some(rng.random_range(2..4000));
    }
    if rng.random_bool(0.3) {
        config.data.packing = Some(rng.random());
    }
    if rng.random_bool(0.3) {
        config.data.over_length = OverLength::Truncate;
    }
    match rng.random_range(0..6) {
        0 => config.micro_batch = Some(rng.random_range(1..9)),
        1 => config.accumulation = Some(rng.random_range(1..9)),
        2 => config.effective_batch = Some(rng.random_range(1..40)),
        3 => {
            let (micro_batch, accumulation) = (rng.random_range(1..9), rng.random_range(1..9));
            config.effective_batch = Some(micro_batch * accumulation);
            (config.micro_batch, config.accumulation) = (Some(micro_batch), Some(accumulation));
        }
        _ => {}
    }
    if rng.random_bool(0.3) {
        config.base = [propose::exact_base(hardware.compute_dtype()), BaseFormat::Nf4].choose(rng).copied();
    }
    if rng.random_bool(0.3) {
        config.recompute = [Recompute::N, Recompute::C1, Recompute::C0].choose(rng).copied();
    }
    if rng.random_bool(0.3) {
        config.optimizer.kind = [OptimizerKind::AdamW32, OptimizerKind::AdamW8].choose(rng).copied();
    }
    if rng.random_bool(0.3) {
        config.optimizer.warmup_steps = Some(rng.random_range(0..50));
    }
    if rng.random_bool(0.3) {
        config.max_steps = Some(rng.random_range(1..500));
    }
    if rng.random_bool(0.3) {
        config.epochs = Some(rng.random_range(0.1..5.0));
    }
    if rng.random_bool(0.3) {
        config.evaluation.every_steps = Some(rng.random_range(1..50));
    }
    if rng.random_bool(0.2) {
        config.evaluation.fraction = 0.0;
    }
    if rng.random_bool(0.3) {
        config.memory_limit_bytes = Some(rng.random_range(1 << 20..32 << 30));
    }
    config.lora.rank = *[1, 4, 8, 16, 64].choose(rng).expect("not empty");
    let n_targets = rng.random_range(1..=7);
    config.lora.targets = Target::ALL[..n_targets].to_vec();
    config
}

/// Calls `claim` with many cases and their plans.
pub(super) fn for_many(claim: impl Fn(&RunConfig, &Hardware, &Plan)) {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let shapes = [smollm(), llama_1b(), llama_8b()];
    let mut n_planned = 0;
    for _ in 0..400 {
        let shape = shapes.choose(&mut rng).expect("not empty");
        let hardware = profiles().choose(&mut rng).expect("not empty").hardware();
        let low = rng.random_range(2..300);
        let high = low + rng.random_range(1..3000);
        let data = examples(rng.random_range(1..3000), low, high);
        let config = random_config(&mut rng, &hardware);
        match plan(shape, &data, &config, &hardware) {
            Ok(plan) => {
                n_planned += 1;
                claim(&config, &hardware, &plan);
            }
            // The only reasons for which a random case here may have no plan.
            Err(Error::AllTooLong { .. } | Error::BatchNotDivisible { .. }) => {}
            Err(error) => panic!("{error}: {config:?}"),
        }
    }
    assert!(n_planned > 300, "{n_planned}");
}

#[test]
fn a_plan_that_fits_never_exceeds_its_budget_and_one_that_does_not_says_by_how_much() {
    for_many(|config, hardware, plan| {
        assert_eq!(plan.fits, plan.planned_bytes <= plan.budget_bytes);
        assert_eq!(plan.short_by_bytes, plan.planned_bytes.saturating_sub(plan.budget_bytes));
        assert_eq!(plan.fits, plan.remedies.is_empty());
        assert_eq!(plan.fits, plan.require_fit().is_ok());
        assert!(plan.budget_bytes <= config.memory_limit_bytes.unwrap_or(u64::MAX));
        let device = hardware.training_card().map_or(hardware.memory_available_bytes, |card| card.memory_bytes);
        assert!(plan.budget_bytes < device);
        assert_eq!(plan.items.iter().map(|item| item.bytes).sum::<u64>(), plan.planned_bytes);
        for alternative in &plan.alternatives {
            let budget = plan.budget_bytes.min(alternative.config.memory_limit_bytes.unwrap_or(u64::MAX));
            assert_eq!(alternative.fits, alternative.planned_bytes <= budget, "{}", alternative.name);
        }
    });
}

#[test]
fn what_is_fixed_by_hand_is_honoured() {
    for_many(|config, _, plan| {
        let settings = &plan.settings;
        let same = |fixed: Option<usize>, got: usize, name: &str| {
            assert!(fixed.is_none_or(|fixed| fixed == got), "{name}: {fixed:?} became {got}");
        };
        same(config.data.length, settings.length, "length");
        same(config.micro_batch, settings.micro_batch, "micro_batch");
        same(config.accumulation, settings.accumulation, "accumulation");
        same(config.effective_batch, settings.micro_batch * settings.accumulation, "effective_batch");
        same(config.max_steps, settings.n_steps, "max_steps");
        same(config.optimizer.warmup_steps, settings.warmup_steps, "warmup_steps");
        same(config.evaluation.every_steps, settings.evaluate_every_steps, "every_steps");
        assert!(config.base.is_none_or(|base| base == settings.base));
        assert!(config.recompute.is_none_or(|mode| mode == settings.recompute));
        assert!(config.optimizer.kind.is_none_or(|kind| kind == settings.optimizer));
        assert!(config.data.packing.is_none_or(|packing| packing == settings.packing));
        assert_eq!((&config.lora, config.seed), (&settings.lora, settings.seed));
    });
}

#[test]
fn every_resolved_value_can_be_run() {
    for_many(|_, _, plan| {
        let settings = &plan.settings;
        assert!(settings.micro_batch >= 1 && settings.accumulation >= 1 && settings.n_steps >= 1);
        assert!(settings.evaluate_every_steps >= 1);
        assert!((1..=settings.max_tokens()).contains(&settings.head_rows));
        assert!(plan.time.total_s.is_finite() && plan.time.total_s > 0.0);
        assert!(plan.time.tokens_per_s.is_finite() && plan.time.tokens_per_s > 0.0);
        assert!(plan.data.n_train >= 1 && plan.data.n_sequences >= 1);
        for reason in &plan.reasons {
            assert!(!reason.why.is_empty() && !reason.value.is_empty(), "{reason:?}");
            assert!(!format!("{reason:?}").contains("NaN"), "{reason:?}");
        }
    });
}

#[test]
fn the_same_input_gives_the_same_plan_and_it_reads_back_from_json() {
    let (shape, data, hardware) = (llama_8b(), examples(4668, 100, 3000), computer("rtx-3060-12gb"));
    let first = plan(&shape, &data, &config(), &hardware).expect("planned");
    for _ in 0..5 {
        assert_eq!(plan(&shape, &data, &config(), &hardware).expect("planned"), first);
    }
    let json = serde_json::to_string(&first).expect("json");
    let read: Plan = serde_json::from_str(&json).expect("read");
    assert_eq!((read.settings, read.items, read.budget), (first.settings, first.items, first.budget));
}

#[test]
fn a_plan_fixed_to_what_was_proposed_is_the_same_plan() {
    for_many(|config, hardware, proposed| {
        let s = &proposed.settings;
        let mut pinned = config.clone();
        pinned.data.length = Some(s.length);
        pinned.data.packing = Some(s.packing);
        (pinned.micro_batch, pinned.accumulation) = (Some(s.micro_batch), Some(s.accumulation));
        (pinned.base, pinned.recompute, pinned.optimizer.kind) = (Some(s.base), Some(s.recompute), Some(s.optimizer));
        pinned.n_layers_eased = Some(s.n_layers_eased);
        pinned.offload_inputs = Some(s.offload_inputs);
        pinned.mlp_rows = Some(s.mlp_rows.unwrap_or(s.max_tokens()));
        pinned.n_layers_streamed = Some(s.n_layers_streamed);
        pinned.n_layers_cached = (s.base == BaseFormat::Nf4).then_some(s.n_layers_cached);
        // The plan is found by its own alternatives too: each config leads to the settings beside it.
        for alternative in &proposed.alternatives {
            assert_eq!(alternative.same, alternative.settings == *s);
        }
        let shape = [smollm(), llama_1b(), llama_8b()]
            .into_iter()
            .find(|shape| cost::lora_elements(shape, &config.lora) == proposed.n_trained);
        let data = DataStats::of([(1, 1); 100]);
        let again = plan(&shape.expect("one of them"), &data, &pinned, hardware).expect("planned");
        assert_eq!(again.planned_bytes, proposed.planned_bytes);
    });
}

#[test]
fn alternatives_are_reached_by_planning_their_configs() {
    let (shape, data, hardware) = (llama_8b(), examples(4668, 100, 6000), computer("rtx-4090-24gb"));
    let proposed = plan(&shape, &data, &config(), &hardware).expect("planned");
    assert_eq!(
        proposed.alternatives.iter().map(|a| a.name.as_str()).collect::<Vec<_>>(),
        ["fastest", "nothing_cut", "leave_room"]
    );
    for alternative in &proposed.alternatives {
        let again = plan(&shape, &data, &alternative.config, &hardware).expect("planned");
        assert_eq!(again.settings, alternative.settings, "{}", alternative.name);
        assert_eq!((again.planned_bytes, again.time), (alternative.planned_bytes, alternative.time.clone()));
    }
    let by = |name: &str| proposed.alternatives.iter().find(|a| a.name == name).expect(name);
    assert!(by("fastest").time.tokens_per_s >= proposed.time.tokens_per_s);
    assert!(by("nothing_cut").settings.length >= data.max_tokens);
    assert!(by("leave_room").planned_bytes + (3 << 30) <= proposed.budget_bytes);
    // Whoever takes it and looks again is not asked to leave still more.
    let taken = plan(&shape, &data, &by("leave_room").config, &hardware).expect("planned");
    let again = taken.alternatives.iter().find(|a| a.name == "leave_room").expect("listed");
    assert!(again.same && again.config == by("leave_room").config);
}

#[test]
fn counterfactuals_are_reached_by_planning_their_configs() {
    let (shape, data, hardware) = (llama_1b(), examples(900, 50, 1500), computer("rtx-3060-12gb"));
    let proposed = plan(&shape, &data, &config(), &hardware).expect("planned");
    let mut n_changes = 0;
    for change in proposed.reasons.iter().filter_map(|reason| reason.change.as_ref()) {
        let other = plan(&shape, &data, &change.config, &hardware).expect("planned");
        assert_eq!(other.planned_bytes as i64 - proposed.planned_bytes as i64, change.bytes, "{}", change.value);
        assert!((other.time.total_s - proposed.time.total_s - change.time_s).abs() < 1e-6, "{}", change.value);
        n_changes += 1;
    }
    assert!(n_changes >= 8, "{n_changes}");
}

#[test]
fn an_outline_is_the_plan_without_what_other_choices_would_do() {
    for (shape, card) in [(llama_1b(), "rtx-3060-12gb"), (llama_8b(), "rtx-4060-8gb"), (llama_8b(), "rtx-2060-6gb")] {
        let (data, hardware) = (examples(900, 50, 1500), computer(card));
        let mut whole = plan(&shape, &data, &config(), &hardware).expect("planned");
        (whole.remedies, whole.alternatives) = (Vec::new(), Vec::new());
        for reason in whole.reasons.iter_mut().filter(|reason| reason.change.is_some()) {
            (reason.change, reason.if_changed) = (None, String::new());
        }
        assert_eq!(outline(&shape, &data, &config(), &hardware).expect("outlined"), whole, "{card}");
    }
}

#[test]
fn bytes_grow_with_length_batch_and_rank() {
    let (shape, data, hardware) = (smollm(), examples(500, 20, 200), no_card());
    let bytes = |config: RunConfig| plan(&shape, &data, &config, &hardware).expect("planned").planned_bytes;
    let grows = |series: Vec<u64>, name: &str| assert!(series.windows(2).all(|w| w[0] < w[1]), "{name}: {series:?}");
    grows([200, 256, 512, 1000, 1024, 4096].map(|length| bytes(fixed(length, 2, 4, 8))).to_vec(), "length");
    grows([1, 2, 3, 8].map(|micro_batch| bytes(fixed(256, micro_batch, 4, 8))).to_vec(), "micro_batch");
    grows([1, 2, 8, 64].map(|rank| bytes(fixed(256, 2, 4, rank))).to_vec(), "rank");
    let accumulations = [1, 2, 64].map(|accumulation| bytes(fixed(256, 2, accumulation, 8)));
    assert!(accumulations.iter().all(|&b| b == accumulations[0]), "accumulation costs no memory: {accumulations:?}");
}

#[test]
fn time_grows_with_rank_recompute_and_passes() {
    let (shape, data, hardware) = (smollm(), examples(500, 20, 200), no_card());
    let time = |config: RunConfig| plan(&shape, &data, &config, &hardware).expect("planned").time.total_s;
    let with = |change: fn(&mut RunConfig)| {
        let mut config = fixed(256, 2, 4, 8);
        change(&mut config);
        time(config)
    };
    assert!(time(fixed(256, 2, 4, 8)) < time(fixed(256, 2, 4, 64)));
    assert!(with(|c| c.recompute = Some(Recompute::N)) < with(|c| c.recompute = Some(Recompute::C1)));
    assert!(with(|c| c.recompute = Some(Recompute::C1)) < with(|c| c.recompute = Some(Recompute::C0)));
    assert!(with(|c| c.epochs = Some(1.0)) < with(|c| c.epochs = Some(2.0)));
    // Where all of an NF4 base stays dequantised it is as fast as the exact one.
    assert!(with(|c| c.base = Some(BaseFormat::F32)) < with(|c| c.n_layers_cached = Some(0)));
}

#[test]
fn less_memory_never_makes_a_faster_plan() {
    let (shape, data) = (llama_1b(), examples(2000, 100, 1500));
    let mut last = f64::INFINITY;
    for gib in (1..40).rev() {
        let mut hardware = no_card();
        (hardware.memory_total_bytes, hardware.memory_available_bytes) = (64 << 30, gib << 30);
        let mut config = config();
        // The length and the exact base are worth time, so they are fixed here.
        (config.data.length, config.base) = (Some(1536), Some(BaseFormat::Nf4));
        config.optimizer.kind = Some(OptimizerKind::AdamW8);
        let plan = plan(&shape, &data, &config, &hardware).expect("planned");
        if plan.fits {
            // Ties within a hundredth go to the smaller plan.
            assert!(plan.time.tokens_per_s <= last * 1.01, "{gib} GiB");
            last = plan.time.tokens_per_s;
        }
    }
    assert!(last.is_finite());
}

#[test]
fn the_exact_base_is_held_where_it_fits_and_nf4_where_it_does_not() {
    let data = examples(500, 50, 500);
    let small = plan(&smollm(), &data, &config(), &no_card()).expect("planned");
    assert_eq!((small.settings.base, small.settings.recompute), (BaseFormat::F32, Recompute::N));
    let exact = plan(&llama_8b(), &data, &config(), &computer("rtx-4090-24gb")).expect("planned");
    assert_eq!(exact.settings.base, BaseFormat::Half);
    let large = plan(&llama_8b(), &data, &config(), &computer("rtx-3060-12gb")).expect("planned");
    assert_eq!(large.settings.base, BaseFormat::Nf4);
    assert!(large.fits);
}

#[test]
fn the_length_takes_all_examples_where_that_is_cheap_and_99_of_100_where_one_is_far_longer() {
    let all = plan(&smollm(), &examples(1000, 50, 300), &config(), &no_card()).expect("planned");
    assert_eq!((all.settings.length, all.data.n_over_length), (320, 0));
    let lengths = [(100, 990), (200, 8), (7000, 2)];
    let lengths = lengths.into_iter().flat_map(|(length, n)| std::iter::repeat_n((length, length / 2), n));
    let outlier = DataStats::of(lengths);
    let plan = plan(&smollm(), &outlier, &config(), &no_card()).expect("planned");
    assert_eq!(plan.settings.length, 128);
    // 10 in truth; between two known lengths the count is an estimate.
    assert!((8..=10).contains(&plan.data.n_over_length), "{}", plan.data.n_over_length);
    let length = plan.reasons.iter().find(|reason| reason.setting == "length").expect("listed");
    assert!(length.why.starts_with("About 99."), "{}", length.why);
}

#[test]
fn no_length_goes_beyond_the_model() {
    let mut shape = smollm();
    shape.max_positions = 100;
    let plan = plan(&shape, &examples(1000, 50, 300), &config(), &no_card()).expect("planned");
    assert_eq!(plan.settings.length, 100);
    assert!(plan.data.n_over_length > 0);
    assert!(plan.alternatives.iter().all(|alternative| alternative.name != "nothing_cut"));
    assert!(plan.warnings.iter().any(|warning| warning.code == "many_too_long"));
}

#[test]
fn the_batch_is_16_and_smaller_only_where_examples_are_few() {
    let batch = |n: usize| {
        let mut config = config();
        config.data.packing = Some(false);
        let s = plan(&smollm(), &examples(n, 90, 100), &config, &no_card()).expect("planned").settings;
        s.micro_batch * s.accumulation
    };
    assert_eq!((batch(4000), batch(200), batch(100), batch(3)), (16, 16, 8, 1));
}

#[test]
fn the_optimizer_is_8_bit_unless_its_state_is_under_a_hundredth_of_the_memory() {
    let mut config = config();
    config.lora.rank = 16;
    let n = cost::lora_elements(&smollm(), &config.lora);
    let kind = |available: u64| {
        let mut hardware = no_card();
        (hardware.memory_total_bytes, hardware.memory_available_bytes) = (available, available);
        let plan = plan(&smollm(), &examples(500, 50, 300), &config, &hardware).expect("planned");
        plan.settings.optimizer
    };
    for available in [3 << 30, 4 << 30, 6 << 30, 24 << 30] {
        let small = 100 * 8 * n < available;
        assert_eq!(kind(available), if small { OptimizerKind::AdamW32 } else { OptimizerKind::AdamW8 }, "{available}");
    }
}

#[test]
fn steps_warm_up_and_evaluation_follow_from_the_examples() {
    let mut config = fixed(128, 2, 4, 8);
    config.data.packing = Some(false);
    config.evaluation.fraction = 0.1;
    let data = examples(1000, 50, 100);
    let with = |config: &RunConfig| plan(&smollm(), &data, config, &no_card()).expect("planned");
    let plan = with(&config);
    // 900 examples, 8 to a step (the last of a pass has 4), 3 passes.
    assert_eq!((plan.data.n_held_out, plan.settings.n_steps), (100, 339));
    assert_eq!((plan.settings.warmup_steps, plan.settings.evaluate_every_steps), (10, 33));
    config.max_steps = Some(1);
    let one = with(&config).settings;
    assert_eq!((one.n_steps, one.warmup_steps, one.evaluate_every_steps), (1, 0, 1));
}

#[test]
fn what_does_not_fit_comes_with_changes_that_make_it_fit_least_harm_first() {
    let mut config = fixed(2048, 8, 2, 16);
    (config.base, config.recompute) = (Some(BaseFormat::F32), Some(Recompute::N));
    config.compute = Some(crate::config::ComputeDtype::F32);
    config.optimizer.kind = Some(OptimizerKind::AdamW32);
    let (shape, data, hardware) = (llama_1b(), examples(1000, 50, 1900), computer("rtx-2060-6gb"));
    let plan_of = |config: &RunConfig| plan(&shape, &data, config, &hardware).expect("planned");
    let plan = plan_of(&config);
    assert!(!plan.fits);
    let settings: Vec<&str> = plan.remedies.iter().map(|remedy| remedy.setting.as_str()).collect();
    let order = [
        "other_programs",
        "recompute",
        "host_memory",
        "micro_batch",
        "optimizer.kind",
        "compute",
        "base",
        "data.length",
        "lora.rank",
    ];
    let places: Vec<usize> =
        settings.iter().map(|s| order.iter().position(|o| o == s).unwrap_or_else(|| panic!("{s}"))).collect();
    assert!(places.is_sorted(), "{settings:?}");
    assert!(plan.remedies.last().expect("some").enough, "{:?}", plan.remedies);
    assert!(plan.remedies.iter().rev().skip(1).all(|remedy| !remedy.enough));
    // Doing what they say works.
    for remedy in &plan.remedies {
        match remedy.setting.as_str() {
            "recompute" => config.recompute = Some(Recompute::C0),
            "micro_batch" => (config.micro_batch, config.accumulation) = (Some(1), Some(16)),
            "optimizer.kind" => config.optimizer.kind = Some(OptimizerKind::AdamW8),
            "compute" => remedy::with_compute(&mut config, ComputeDtype::F16),
            "base" => config.base = Some(BaseFormat::Nf4),
            "data.length" => config.data.length = Some(remedy.value.parse().expect("a number")),
            _ => {}
        }
    }
    assert!(plan_of(&config).fits);
    let error = plan.require_fit().expect_err("refused");
    assert_eq!(error.code(), "plan.does_not_fit");
    assert!(error.to_string().contains("RTX 2060") && error.next_step().contains("Close other programs"));
}

#[test]
fn a_limit_set_by_hand_is_the_first_thing_to_raise() {
    let mut config = config();
    config.memory_limit_bytes = Some(1 << 20);
    let plan_of = |config: &RunConfig| plan(&smollm(), &examples(500, 50, 300), config, &no_card()).expect("planned");
    let plan = plan_of(&config);
    assert!(!plan.fits && plan.budget.limited_by_hand);
    assert_eq!(plan.remedies.len(), 1);
    assert!(plan.remedies[0].enough && plan.remedies[0].setting == "memory_limit_bytes");
    assert_eq!(plan.remedies[0].saves_bytes, 0, "more of the memory is used, not less needed");
    config.memory_limit_bytes = Some(plan.remedies[0].value.parse().expect("bytes"));
    assert!(plan_of(&config).fits);
}

#[test]
fn a_model_beyond_every_change_is_answered_with_a_smaller_model() {
    let mut hardware = computer("rtx-2060-6gb");
    hardware.cards[0].memory_bytes = 2 << 30;
    let plan = plan(&llama_8b(), &examples(500, 50, 300), &config(), &hardware).expect("planned");
    assert!(!plan.fits);
    let ends = plan.remedies.iter().rev().take(2).map(|remedy| remedy.setting.as_str()).collect::<Vec<_>>();
    assert_eq!(ends, ["card", "model"], "{:?}", plan.remedies);
    // Both say one that does.
    let [model, card] = &plan.remedies[plan.remedies.len() - 2..] else { panic!("two") };
    assert!(model.enough && card.enough, "{:?}", plan.remedies);
    let smaller = crate::model::Catalogue::bundled().find(&model.value).expect("of the catalogue");
    assert!(smaller.shape.params() < llama_8b().params());
    let data = examples(500, 50, 300);
    assert!(super::plan(&smaller.shape, &data, &config(), &hardware).expect("planned").fits);
    assert!(super::plan(&llama_8b(), &data, &config(), &computer(&card.value)).expect("planned").fits);
    let gib = profile(&card.value).and_then(|p| p.card.as_ref()).expect("a card").memory_bytes >> 30;
    let (none_smaller, words) = (gib - 1, format!("a card with {gib} GiB"));
    assert!(card.words.contains(&words), "{}", card.words);
    for profile in profiles() {
        let Some(described) = profile.card.as_ref().filter(|card| card.memory_bytes >> 30 <= none_smaller) else {
            continue;
        };
        let hardware = profile.in_computer(&hardware);
        let plan = super::plan(&llama_8b(), &data, &config(), &hardware).expect("planned");
        assert!(!plan.fits, "{} has {} and would do", profile.id, described.memory_bytes);
    }
}

#[test]
fn a_measured_speed_replaces_the_calculated_one() {
    let (shape, data, mut hardware) = (smollm(), examples(500, 50, 300), no_card());
    let calculated = plan(&shape, &data, &config(), &hardware).expect("planned");
    assert_eq!(calculated.time.basis, Basis::Calculated);
    assert!(calculated.time.basis_words.contains("calculated"));
    let s = &calculated.settings;
    let micro_batch_tokens = calculated.time.n_tokens_per_step as usize / s.accumulation;
    let mut rate = MeasuredRate {
        device: hardware.device_name().into(),
        model: model_key(&shape),
        compute: Some(s.compute),
        base: s.base,
        recompute: s.recompute,
        n_layers_eased: 0,
        n_layers_cached: 0,
        rank: s.lora.rank,
        targets: s.lora.targets.clone(),
        length: s.length,
        micro_batch: s.micro_batch,
        micro_batch_tokens,
        tokens_per_s: 123.0,
        time_ms: 0,
    };
    let mut pinned = config();
    pinned.data.length = Some(s.length);
    (pinned.micro_batch, pinned.accumulation) = (Some(s.micro_batch), Some(s.accumulation));
    let with = |rate: &MeasuredRate, hardware: &mut Hardware| {
        hardware.measurements.rates = vec![rate.clone()];
        plan(&shape, &data, &pinned, hardware).expect("planned").time
    };
    let measured = with(&rate, &mut hardware);
    assert_eq!(measured.basis, Basis::Measured);
    assert!((measured.tokens_per_s / 123.0 - 1.0).abs() < 0.01, "{}", measured.tokens_per_s);
    assert!(measured.plus_minus < calculated.time.plus_minus);
    // Of two of the same load the newer one counts, which stands last.
    hardware.measurements.rates = vec![rate.clone(), MeasuredRate { tokens_per_s: 200.0, ..rate.clone() }];
    let newest = plan(&shape, &data, &pinned, &hardware).expect("planned").time.tokens_per_s;
    assert!((newest / 200.0 - 1.0).abs() < 0.01, "{newest}");
    let kept = with(&MeasuredRate { n_layers_cached: 9, ..rate.clone() }, &mut hardware);
    assert_eq!(kept.basis, Basis::Scaled, "weights were kept there and are not here");
    let larger = with(&MeasuredRate { rank: 128, ..rate.clone() }, &mut hardware);
    assert_eq!(larger.basis, Basis::Scaled);
    assert!(larger.tokens_per_s > 123.0, "less to compute than with rank 128");
    rate.recompute = Recompute::C0;
    let scaled = with(&rate, &mut hardware);
    assert_eq!(scaled.basis, Basis::Scaled);
    assert!(scaled.tokens_per_s > 123.0, "less to compute than in C0");
    rate.compute = Some(ComputeDtype::Bf16);
    assert_eq!(with(&rate, &mut hardware).basis, Basis::Calculated, "another type is another speed");
    rate.compute = None;
    assert_eq!(with(&rate, &mut hardware).basis, Basis::Scaled, "one of an earlier version");
    rate.model = "another".into();
    assert_eq!(with(&rate, &mut hardware).basis, Basis::Calculated);
    rate.model = model_key(&shape);
    rate.device = "another".into();
    assert_eq!(with(&rate, &mut hardware).basis, Basis::Calculated);
}

#[test]
fn wishes_that_make_no_sense_are_refused_by_field() {
    let refused = |change: fn(&mut RunConfig), code: &str, words: &str| {
        let mut config = config();
        change(&mut config);
        let error = plan(&smollm(), &examples(500, 50, 300), &config, &no_card()).expect_err(words);
        assert_eq!(error.code(), code, "{error}");
        assert!(error.to_string().contains(words), "{error} has no {words}");
        assert!(!error.next_step().is_empty());
    };
    refused(
        |c| (c.micro_batch, c.accumulation, c.effective_batch) = (Some(2), Some(4), Some(16)),
        "plan.batch_contradiction",
        "micro_batch 2 times accumulation 4 is not effective_batch 16",
    );
    refused(
        |c| (c.micro_batch, c.effective_batch) = (Some(3), Some(16)),
        "plan.batch_not_divisible",
        "effective_batch 16 cannot be divided by micro_batch 3",
    );
    let out = "plan.out_of_range";
    refused(|c| c.micro_batch = Some(0), out, "micro_batch is 0");
    refused(|c| c.data.length = Some(1), out, "data.length is 1");
    refused(|c| c.lora.rank = 0, out, "lora.rank is 0");
    refused(|c| c.lora.alpha = f32::NAN, out, "lora.alpha is NaN");
    refused(|c| c.lora.dropout = 1.0, out, "lora.dropout is 1");
    refused(|c| c.lora.dropout = -0.1, out, "lora.dropout is -0.1");
    refused(|c| c.optimizer.learning_rate = 0.0, out, "optimizer.learning_rate is 0");
    refused(|c| c.optimizer.beta2 = 1.0, out, "optimizer.beta2 is 1");
    refused(|c| c.epochs = Some(0.0), out, "epochs is 0");
    refused(|c| c.epochs = Some(f64::INFINITY), out, "epochs is inf");
    refused(|c| c.max_steps = Some(0), out, "max_steps is 0");
    refused(|c| c.evaluation.fraction = 1.0, out, "evaluation.fraction is 1");
    refused(|c| c.evaluation.every_steps = Some(0), out, "evaluation.every_steps is 0");
    refused(|c| c.lora.targets.clear(), "plan.no_targets", "no linear layer");
    refused(|c| c.lora.targets.push(Target::Q), "plan.repeated_target", "q_proj");
    refused(|c| c.data.length = Some(8193), "plan.length_past_model", "8193");
    refused(|c| c.data.length = Some(8), "plan.all_too_long", "longer than 8 tokens");
    refused(|c| c.checkpoints.keep = 1_000_000_000_000, out, "checkpoints.keep is 1000000000000");
    refused(|c| c.evaluation.n_samples = usize::MAX, out, "evaluation.n_samples is ");
    refused(|c| c.n_layers_cached = Some(1 << 25), out, "n_layers_cached is 33554432");
}

#[test]
fn data_without_anything_to_learn_is_refused() {
    let mut data = examples(10, 50, 300);
    data.n_learned_tokens = 0;
    assert_eq!(plan(&smollm(), &data, &config(), &no_card()).expect_err("refused").code(), "plan.nothing_learned");
    let none = DataStats::default();
    assert_eq!(plan(&smollm(), &none, &config(), &no_card()).expect_err("refused").code(), "plan.no_examples");
}

#[test]
fn disk_covers_every_checkpoint_that_exists_at_once() {
    let mut config = fixed(256, 2, 4, 8);
    config.optimizer.kind = Some(OptimizerKind::AdamW32);
    config.checkpoints.keep = 2;
    let plan = plan(&smollm(), &examples(500, 20, 200), &config, &no_card()).expect("planned");
    let n = plan.n_trained;
    assert!(plan.disk.checkpoint_bytes >= 12 * n);
    // Two kept, the best one, one being written.
    assert_eq!(plan.disk.checkpoints_bytes, 4 * plan.disk.checkpoint_bytes);
    assert!(plan.disk.merged_bytes >= 2 * smollm().params() as u64);
    assert_eq!(plan.disk_bytes, plan.disk.checkpoints_bytes + plan.disk.adapter_bytes + plan.disk.merged_bytes);
}

#[test]
fn a_cell_of_the_table_is_the_plan_in_short() {
    let models: Vec<_> = crate::model::Catalogue::bundled().models.iter().collect();
    let cards: Vec<_> = profiles().iter().step_by(9).collect();
    let mut asked = config();
    asked.data.over_length = OverLength::Truncate;
    asked.prices = Some(crate::config::Prices { per_kwh: Some(0.3), ..Default::default() });
    let data = |shape: &ModelShape| assumed_examples(shape.max_positions.min(1536));
    let table = card_table(&models, &cards, &data, &asked);
    assert_eq!((table.rows.len(), table.cards.len()), (models.len(), cards.len()));
    let mut seen = std::collections::BTreeMap::new();
    for (row, model) in table.rows.iter().zip(&models) {
        assert_eq!(row.id, model.id);
        for ((cell, column), profile) in row.cells.iter().zip(&table.cards).zip(&cards) {
            assert_eq!(column.id, profile.id);
            let TableCell::Planned(cell) = cell else { panic!("{}: {cell:?}", model.id) };
            let plan = plan(&model.shape, &data(&model.shape), &asked, &profile.hardware()).expect("planned");
            assert_eq!((cell.planned_bytes, cell.budget_bytes), (plan.planned_bytes, plan.budget_bytes));
            assert_eq!((cell.total_s, cell.tokens_per_s), (plan.time.total_s, plan.time.tokens_per_s));
            assert_eq!((cell.base, cell.length, &cell.price), (plan.settings.base, plan.settings.length, &plan.price));
            assert_eq!(cell.fit == Fit::No, !plan.fits);
            let is_whole = plan.settings.recompute == Recompute::N && !plan.settings.is_stretched();
            assert_eq!(cell.fit == Fit::Comfortable, plan.fits && is_whole);
            *seen.entry(format!("{:?}", cell.fit)).or_insert(0) += 1;
        }
    }
    assert_eq!(seen.len(), 3, "{seen:?}");
    // A wish that one card cannot have is refused there alone.
    asked.compute = Some(ComputeDtype::Bf16);
    let cards = [profile("rtx-2080-8gb").expect("bundled"), profile("rtx-3060-12gb").expect("bundled")];
    let table = card_table(&models, &cards, &data, &asked);
    for row in &table.rows {
        assert!(matches!(&row.cells[0], TableCell::Refused(why) if why.contains("bf16")), "{:?}", row.cells[0]);
        assert!(matches!(row.cells[1], TableCell::Planned(_)));
    }
}

#[test]
fn a_card_without_bf16_is_planned_in_f16_and_says_why() {
    let (shape, data, turing) = (llama_1b(), examples(500, 50, 500), computer("rtx-2060-6gb"));
    let plan_of = |config: &RunConfig| plan(&shape, &data, config, &turing);
    let proposed = plan_of(&config()).expect("planned");
    assert_eq!(proposed.settings.compute, ComputeDtype::F16);
    let reason = proposed.reasons.iter().find(|reason| reason.setting == "compute").expect("said");
    assert_eq!((reason.value.as_str(), reason.code.as_str()), ("f16", "compute.no_bf16"));
    assert_eq!(reason.change.as_ref().map(|change| change.value.as_str()), Some("f32"));
    // As many bytes as in bf16, and a base that is exact is in 16 bits.
    let with = |compute, base| plan_of(&RunConfig { compute, base, ..config() });
    let half = with(Some(ComputeDtype::F16), Some(BaseFormat::Half)).expect("planned");
    let f32 = with(Some(ComputeDtype::F32), Some(BaseFormat::F32)).expect("planned");
    assert!(half.planned_bytes < f32.planned_bytes);
    let refused = |compute, base| with(compute, base).expect_err("refused");
    let error = refused(Some(ComputeDtype::Bf16), None);
    assert_eq!((error.code(), error.next_step().as_str()), ("plan.no_compute", "Leave compute out, or set it to f16."));
    assert_eq!(refused(None, Some(BaseFormat::F32)).code(), "plan.base_contradiction");
    // By hand on a card that has bf16; never on the processor.
    let by_hand = RunConfig { compute: Some(ComputeDtype::F16), ..config() };
    let on = |hardware: &Hardware| plan(&shape, &data, &by_hand, hardware);
    let later = on(&computer("rtx-3060-12gb")).expect("planned");
    assert_eq!(later.settings.compute, ComputeDtype::F16);
    let reason = later.reasons.iter().find(|reason| reason.setting == "compute").expect("said");
    assert_eq!((reason.code.as_str(), reason.fixed), ("compute.fixed_f16", true));
    assert_eq!(on(&no_card()).expect_err("refused").code(), "plan.no_compute");
    let usual = plan(&shape, &data, &config(), &computer("rtx-3060-12gb")).expect("planned");
    assert!(usual.reasons.iter().all(|reason| reason.setting != "compute"));
}

#[test]
fn prices_become_energy_and_money_and_change_nothing_else() {
    let (shape, data, hardware) = (llama_1b(), examples(900, 50, 1500), computer("rtx-3060-12gb"));
    let free = plan(&shape, &data, &config(), &hardware).expect("planned");
    assert_eq!(free.price, None);
    let mut priced = config();
    priced.prices =
        Some(crate::config::Prices { currency: "EUR".into(), per_kwh: Some(0.3), per_hour: Some(1.5), power_w: None });
    let plan_of = |config: &RunConfig, hardware: &Hardware| plan(&shape, &data, config, hardware).expect("planned");
    let plan = plan_of(&priced, &hardware);
    assert_eq!((&plan.settings, &plan.items, &plan.time), (&free.settings, &free.items, &free.time));
    let price = plan.price.expect("prices are given");
    let hours = plan.time.total_s / 3600.0;
    // 170 W of the board, of which nine tenths, and the computer around it.
    assert!((price.power_w - (0.9 * 170.0 + 75.0)).abs() < 1e-9 && price.power_words.contains("170 W"), "{price:?}");
    assert!((price.energy_kwh - price.power_w * hours / 1000.0).abs() < 1e-9);
    assert!((price.energy_cost.expect("a price") - 0.3 * price.energy_kwh).abs() < 1e-9);
    assert!((price.rent_cost.expect("a price") - 1.5 * hours).abs() < 1e-9);
    assert!(price.words().contains("EUR") && price.words().contains("rented"), "{}", price.words());
    let mut limited = hardware.clone();
    limited.cards[0].power_limit_w = Some(120.0);
    let limited = plan_of(&priced, &limited).price.expect("prices are given");
    assert!((limited.power_w - (0.9 * 120.0 + 75.0)).abs() < 1e-9 && limited.power_words.contains("120 W"));
    priced.prices.as_mut().expect("given").power_w = Some(100.0);
    let measured = plan_of(&priced, &no_card()).price.expect("prices are given");
    assert_eq!((measured.power_w, measured.power_words.as_str()), (100.0, "as given"));
    priced.prices.as_mut().expect("given").per_kwh = Some(-1.0);
    let refused = super::plan(&shape, &data, &priced, &hardware).expect_err("refused");
    assert!(refused.to_string().contains("prices.per_kwh is -1"), "{refused}");
}

#[test]
fn the_peak_covers_the_answers_of_an_evaluation_and_the_copy_of_a_checkpoint() {
    let (shape, data) = (llama_8b(), examples(4668, 100, 1000));
    let item = |plan: &Plan, name: &str| plan.items.iter().find(|item| item.name == name).map_or(0, |item| item.bytes);
    let mut asked = fixed(1024, 1, 16, 16);
    let hardware = computer("rtx-4090-24gb");
    let plan_of = |config: &RunConfig, hardware: &Hardware| plan(&shape, &data, config, hardware).expect("planned");
    let with = plan_of(&asked, &hardware);
    // 1,087 rows of 64 Ki elements of keys and values in 16 bit, in steps of 256.
    let cache = 1280 * 65_536 * 2;
    assert!((cache..2 * cache).contains(&item(&with, "samples")), "{}", item(&with, "samples"));
    asked.evaluation.n_samples = 0;
    let without = plan_of(&asked, &hardware);
    assert_eq!(item(&without, "samples"), 0);
    assert_eq!(with.planned_bytes - without.planned_bytes, item(&with, "samples"));
    // Where nothing is held out nothing is answered, and on the processor the adapter is copied for a checkpoint.
    asked.evaluation = crate::config::EvaluationConfig { fraction: 0.0, ..Default::default() };
    let mut roomy = no_card();
    (roomy.memory_total_bytes, roomy.memory_available_bytes) = (64 << 30, 60 << 30);
    let plain = plan_of(&asked, &roomy);
    // Of the adapter, and of one moment in 8 bit.
    assert_eq!((item(&plain, "samples"), item(&plain, "checkpoint")), (0, 5 * plain.n_trained));
    assert_eq!(plain.settings.n_samples, 0);
}

#[test]
fn answers_at_evaluations_give_way_before_a_run_is_refused() {
    let (shape, data, hardware) = (llama_8b(), examples(4668, 100, 1000), computer("rtx-3060-12gb"));
    let mut asked = fixed(1024, 1, 16, 16);
    asked.recompute = Some(Recompute::C0);
    (asked.offload_inputs, asked.mlp_rows, asked.n_layers_streamed) = (Some(false), Some(1024), Some(0));
    asked.n_layers_cached = Some(0);
    let plan_of = |config: &RunConfig| plan(&shape, &data, config, &hardware).expect("planned");
    let samples = {
        let plan = plan_of(&asked);
        plan.items.iter().find(|item| item.name == "samples").expect("planned for").bytes
    };
    let whole = plan_of(&asked);
    let least = {
        asked.evaluation.n_samples = 0;
        plan_of(&asked).planned_bytes
    };
    asked.evaluation.n_samples = 3;
    // The rows of the head shrink before the answers go, so the limit is just what is needed without them.
    asked.memory_limit_bytes = Some(least.min(whole.planned_bytes - samples));
    let tight = plan_of(&asked);
    assert!(tight.fits, "{} of {}", tight.planned_bytes, tight.budget_bytes);
    assert_eq!(tight.settings.n_samples, 0);
    assert!(tight.warnings.iter().any(|warning| warning.code == "no_samples"), "{:?}", tight.warnings);
}

#[test]
fn remembered_sums_are_those_of_the_layout() {
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let shape = llama_1b();
    let sums = beside::Sums::default();
    for _ in 0..300 {
        let s = Settings {
            length: *[64, 512, 1000].choose(&mut rng).expect("not empty"),
            micro_batch: rng.random_range(1..4),
            accumulation: rng.random_range(1..4),
            n_layers_eased: rng.random_range(0..3),
            recompute: *[Recompute::N, Recompute::C1, Recompute::C0].choose(&mut rng).expect("not empty"),
            base: *[BaseFormat::F32, BaseFormat::Nf4].choose(&mut rng).expect("not empty"),
            optimizer: *[OptimizerKind::AdamW32, OptimizerKind::AdamW8].choose(&mut rng).expect("not empty"),
            lora: LoraConfig { rank: rng.random_range(1..3), alpha: rng.random(), ..Default::default() },
            n_samples: rng.random_range(0..3),
            mlp_rows: *[None, Some(100)].choose(&mut rng).expect("not empty"),
            n_layers_cached: rng.random_range(0..3),
            learning_rate: rng.random(),
            ..Settings::default()
        };
        assert_eq!(sums.of(&shape, &s), beside::Sum::of(&shape, &s), "{s:?}");
        assert_eq!(sums.of(&shape, &s).planned_bytes, planned_bytes(&shape, &s));
    }
}

#[test]
fn a_plan_that_knows_the_prompts_counts_these_and_nothing_else_changes() {
    let (shape, data) = (smollm(), examples(500, 20, 500));
    let bound = plan(&shape, &data, &config(), &no_card()).expect("planned");
    let samples = |plan: &Plan| plan.items.iter().find(|item| item.name == "samples").map_or(0, |item| item.bytes);
    let mut known = bound.clone();
    known.set_samples(&shape, 3, 3 * bound.settings.length);
    assert_eq!((known.planned_bytes, samples(&known)), (bound.planned_bytes, samples(&bound)));
    known.set_samples(&shape, 2, 90);
    assert!(samples(&known) < samples(&bound));
    assert_eq!(known.items.iter().map(|item| item.bytes).sum::<u64>(), known.planned_bytes);
    known.set_samples(&shape, 0, 0);
    assert_eq!((samples(&known), known.settings.n_samples), (0, 0));
    let rest = |plan: &Plan| {
        plan.items
            .iter()
            .filter(|i| !["samples", "checkpoint", "loading"].contains(&i.name.as_str()))
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(rest(&known), rest(&bound));
}
