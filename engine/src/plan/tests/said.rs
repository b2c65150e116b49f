//! What is said of a plan is so of this plan.

use super::*;

#[test]
fn an_alternative_says_what_it_changes_in_the_training_and_that_it_does_not_fit() {
    let data = examples(900, 50, 900);
    let room = |shape: &ModelShape, config: &RunConfig, card: &str| {
        let plan = plan(shape, &data, config, &computer(card)).expect("planned");
        (plan.settings.optimizer, plan.alternatives.into_iter().find(|a| a.name == "leave_room").expect("listed"))
    };
    // How much others hold at the moment changes nothing of what is learned.
    let (optimizer, other) = room(&llama_1b(), &config(), "rtx-3060-12gb");
    assert_eq!((optimizer, other.settings.optimizer), (OptimizerKind::AdamW32, OptimizerKind::AdamW32));
    let mut asked = config();
    asked.data.length = Some(1024);
    let (_, other) = room(&llama_8b(), &asked, "rtx-2060-6gb");
    assert!(!other.fits && other.words.ends_with("does not fit"), "{}", other.words);
}

#[test]
fn the_largest_values_that_are_allowed_are_planned() {
    let most = 1 << 24;
    let shape = ModelShape { max_positions: 1 << 17, ..shape(8192, 80, 64, 8, 28_672, 128_256, false) };
    let mut asked = config();
    (asked.micro_batch, asked.accumulation, asked.max_steps) = (Some(most), Some(most), Some(most));
    (asked.data.length, asked.recompute) = (Some(1 << 17), Some(Recompute::N));
    (asked.evaluation.n_samples, asked.checkpoints.keep) = (most, most);
    (asked.n_layers_eased, asked.n_layers_cached) = (Some(most), Some(most));
    asked.compute = Some(ComputeDtype::F32);
    for hardware in [computer("rtx-4090-24gb"), no_card()] {
        assert!(!plan(&shape, &examples(500, 50, 300), &asked, &hardware).expect("planned").fits);
    }
    let mut asked = config();
    (asked.n_layers_streamed, asked.n_layers_cached) = (Some(100), Some(100));
    let plan = plan(&llama_8b(), &examples(500, 50, 300), &asked, &computer("rtx-3060-12gb")).expect("planned");
    assert_eq!((plan.settings.n_layers_streamed, plan.settings.n_layers_cached), (32, 32), "of 32 layers");
}

#[test]
fn reasons_are_those_of_this_config() {
    let (shape, hardware) = (llama_1b(), computer("rtx-3060-12gb"));
    let reason = |config: &RunConfig, setting: &str| {
        let plan = plan(&shape, &examples(5000, 50, 300), config, &hardware).expect("planned");
        let reason = plan.reasons.into_iter().find(|reason| reason.setting == setting).expect("said");
        (reason.code, reason.fixed, reason.change)
    };
    let mut asked = config();
    asked.effective_batch = Some(1);
    let (code, fixed, _) = reason(&asked, "batch");
    assert_eq!((code.as_str(), fixed), ("batch.fixed", true));
    let mut asked = config();
    asked.n_layers_cached = Some(2);
    assert_eq!(reason(&asked, "base").0, "base.layers");
    let mut asked = config();
    asked.evaluation.fraction = 0.0;
    assert_eq!(reason(&asked, "epochs").0, "epochs.usual_unevaluated");
    assert_eq!(reason(&config(), "epochs").0, "epochs.usual");
    // Twice this rank would be refused.
    let mut asked = config();
    asked.lora.rank = 3000;
    assert_eq!(reason(&asked, "rank").2, None);
}

#[test]
fn what_waits_in_system_memory_is_as_chosen_only_where_all_of_it_is() {
    let mut asked = config();
    (asked.data.length, asked.mlp_rows) = (Some(2048), Some(1024));
    (asked.base, asked.recompute) = (Some(BaseFormat::Nf4), Some(Recompute::C0));
    let reason = |shape: &ModelShape| {
        let plan = plan(shape, &assumed_examples(2048), &asked, &computer("rtx-2060-6gb")).expect("planned");
        assert!(plan.fits, "{} of {}", plan.planned_bytes, plan.budget_bytes);
        let reason = plan.reasons.into_iter().find(|reason| reason.setting == "host_memory").expect("said");
        (reason.code, reason.fixed)
    };
    assert_eq!(reason(&llama_1b()), ("host_memory.fixed".to_string(), true));
    // The larger model's layers have to wait there too, and nobody chose that.
    assert_eq!(reason(&llama_8b()), ("host_memory.tight".to_string(), false));
}
