//! What the search finds: whatever there is, and the time that it takes.

use super::*;
use crate::hardware::TrainOn;

#[test]
fn eight_bit_state_is_taken_before_a_run_is_refused_for_32_bit_state() {
    let mut asked = fixed(512, 1, 16, 16);
    asked.n_layers_cached = Some(0);
    asked.recompute = Some(Recompute::C0);
    let (shape, data, hardware) = (llama_1b(), examples(500, 50, 500), computer("rtx-3060-12gb"));
    let plan_of = |config: &RunConfig| plan(&shape, &data, config, &hardware).expect("planned");
    let least = plan_of(&RunConfig { memory_limit_bytes: Some(1), ..asked.clone() }).planned_bytes;
    asked.optimizer.kind = None;
    assert_eq!(plan_of(&asked).settings.optimizer, OptimizerKind::AdamW32);
    let tight = plan_of(&RunConfig { memory_limit_bytes: Some(least), ..asked });
    assert!(tight.fits && tight.settings.optimizer == OptimizerKind::AdamW8, "{:?}", tight.settings);
    assert!(tight.reasons.iter().any(|reason| reason.code == "optimizer.tight"), "{:?}", tight.reasons);
}

#[test]
fn what_a_value_fixed_by_hand_makes_fit_a_setting_left_open_finds() {
    let mut rng = ChaCha8Rng::seed_from_u64(23);
    let shapes = [llama_1b(), llama_8b()].map(|shape| ModelShape { max_positions: 1 << 17, ..shape });
    let computers = ["rtx-2060-6gb", "rtx-3060-12gb", "rtx-4090-24gb", "no-card"].map(computer);
    let mut n_fitting = 0;
    for _ in 0..150 {
        let shape = shapes.choose(&mut rng).expect("not empty");
        let hardware = computers.choose(&mut rng).expect("not empty");
        let on_card = hardware.train_on == TrainOn::Card;
        let length = propose::LENGTH_STEP * rng.random_range(4..900_usize);
        let data = assumed_examples(length);
        let mut open = config();
        open.data.length = Some(length);
        open.lora.rank = *[8, 64, 256].choose(&mut rng).expect("not empty");
        let found = outline(shape, &data, &open, hardware).expect("planned");
        for _ in 0..4 {
            let mut by_hand = open.clone();
            if on_card && rng.random() {
                by_hand.offload_inputs = Some(rng.random());
            }
            if on_card && rng.random() {
                by_hand.n_layers_streamed = Some(rng.random_range(0..=shape.n_layers));
            }
            if rng.random() {
                by_hand.mlp_rows = [1024, 4096, length].choose(&mut rng).copied();
            }
            if rng.random_bool(0.3) {
                by_hand.n_layers_cached = Some(rng.random_range(0..3));
            }
            if rng.random_bool(0.3) {
                by_hand.micro_batch = Some(1);
            }
            if rng.random_bool(0.3) {
                by_hand.base =
                    [propose::exact_base(hardware.compute_dtype()), BaseFormat::Nf4].choose(&mut rng).copied();
            }
            if rng.random_bool(0.3) {
                by_hand.recompute = [Recompute::N, Recompute::C1, Recompute::C0].choose(&mut rng).copied();
            }
            if rng.random() {
                by_hand.optimizer.kind = [OptimizerKind::AdamW32, OptimizerKind::AdamW8].choose(&mut rng).copied();
            }
            // An exact base that is streamed is refused.
            let Ok(plan) = outline(shape, &data, &by_hand, hardware) else { continue };
            // By hand more may wait in system memory than a plan proposes.
            let is_proposable = plan.host.as_ref().is_none_or(|host| host.bytes <= host.budget_bytes);
            if plan.fits && is_proposable {
                n_fitting += 1;
                assert!(found.fits, "{} of {}: {by_hand:?}", found.planned_bytes, found.budget_bytes);
            }
        }
    }
    assert!(n_fitting > 50, "{n_fitting}");
}

#[test]
fn the_exact_base_is_given_up_after_rows_at_the_head() {
    let mut asked = config();
    asked.data.length = Some(512);
    asked.evaluation.n_samples = 0;
    asked.optimizer.kind = Some(OptimizerKind::AdamW8);
    let (shape, data) = (llama_1b(), assumed_examples(512));
    let plan_of = |config: &RunConfig| plan(&shape, &data, config, &no_card()).expect("planned");
    let exact = RunConfig { base: Some(BaseFormat::F32), memory_limit_bytes: Some(1), ..asked.clone() };
    let tight = plan_of(&RunConfig { memory_limit_bytes: Some(plan_of(&exact).planned_bytes), ..asked });
    assert_eq!((tight.fits, tight.settings.base, tight.settings.head_rows), (true, BaseFormat::F32, 64));
}

#[test]
fn the_last_step_of_a_pass_takes_what_is_left_and_no_more() {
    let mut asked = fixed(128, 4, 4, 8);
    asked.data.packing = Some(false);
    asked.evaluation.fraction = 0.0;
    let data = examples(20, 50, 100);
    let with = |config: &RunConfig| plan(&smollm(), &data, config, &no_card()).expect("planned").time;
    let time = with(&asked);
    assert_eq!((time.n_steps, time.epochs), (6, 3.0));
    assert!(time.n_tokens.abs_diff(3 * data.n_tokens as u64) <= 1, "{} of {}", time.n_tokens, data.n_tokens);
    assert!((time.total_s * time.tokens_per_s / time.n_tokens as f64 - 1.0).abs() < 1e-3);
    asked.max_steps = Some(100);
    assert_eq!(with(&asked).epochs, 50.0);
    // A pass that is not ended has whole steps only.
    asked.max_steps = Some(1);
    assert_eq!(with(&asked).epochs, 0.8);
}

#[test]
fn as_many_examples_are_evaluated_as_are_held_out() {
    let mut asked = fixed(128, 2, 4, 8);
    (asked.max_steps, asked.evaluation.every_steps) = (Some(100), Some(10));
    let mut with = |fraction: f64| {
        asked.evaluation.fraction = fraction;
        let plan = plan(&smollm(), &examples(1000, 50, 100), &asked, &no_card()).expect("planned");
        plan.time.evaluation_s / plan.data.n_held_out as f64
    };
    let (few, many) = (with(0.01), with(0.1));
    // The rest is what the packing of more or fewer examples into sequences changes in the speed.
    assert!((few / many - 1.0).abs() < 1e-3, "{few} and {many}");
}
