//! The reverse questions: the longest sequence, the largest rank, micro-batch and model that fit.

use super::*;

fn with_length(length: usize) -> DataStats {
    assumed_examples(length)
}

#[test]
fn the_longest_sequence_fits_and_one_step_more_does_not() {
    let mut ended_by_the_model = 0;
    for (shape, id, rank) in [
        (llama_8b(), "rtx-3060-12gb", 16),
        (llama_8b(), "rtx-4060-8gb", 8),
        (llama_1b(), "rtx-2060-6gb", 64),
        (llama_1b(), "rtx-2050-laptop-4gb", 16),
        (smollm(), "no-card", 4),
    ] {
        // Far enough that memory ends it, but for the last.
        let shape = ModelShape { max_positions: if id == "no-card" { 1000 } else { 1 << 20 }, ..shape };
        let (hardware, mut config) = (computer(id), config());
        config.lora.rank = rank;
        let found = longest(&shape, &config, &hardware).expect("found");
        let length = found.value as usize;
        assert_eq!((found.quantity, found.settings.length, found.settings.micro_batch), (Quantity::Length, length, 1));
        let again = plan(&shape, &with_length(length), &found.config, &hardware).expect("planned");
        assert!(again.fits, "{id}");
        assert_eq!(
            (&again.settings, again.planned_bytes, &again.time),
            (&found.settings, found.planned_bytes, &found.time)
        );
        if length == shape.max_positions {
            assert_eq!((found.bound, found.next), (Bound::Model, None));
            ended_by_the_model += 1;
            continue;
        }
        let next = found.next.expect("memory ends it");
        assert_eq!((found.bound, next.value as usize), (Bound::Memory, length + propose::LENGTH_STEP));
        let mut more = found.config.clone();
        more.data.length = Some(next.value as usize);
        let beyond = plan(&shape, &with_length(next.value as usize), &more, &hardware).expect("planned");
        assert!(!beyond.fits && beyond.planned_bytes == next.planned_bytes, "{id}: {next:?}");
        assert!(found.usual.is_none_or(|usual| usual.tokens_per_s > 0.0));
    }
    assert_eq!(ended_by_the_model, 1);
}

#[test]
fn the_longest_sequence_is_no_shorter_than_with_the_inputs_placed_by_hand() {
    let shape = ModelShape { max_positions: 1 << 17, ..llama_8b() };
    for id in ["rtx-2060-6gb", "rtx-3060-12gb", "rtx-4090-24gb"] {
        // By hand, inputs may wait where a plan would leave the system memory to others: that is warned of, and no measure here.
        for (free_bytes, by_hand) in [(computer(id).memory_available_bytes, &[false][..]), (256 << 30, &[false, true])]
        {
            let hardware = Hardware { memory_available_bytes: free_bytes, ..computer(id) };
            let longest = |offload_inputs: Option<bool>| {
                let asked = RunConfig { offload_inputs, ..config() };
                longest(&shape, &asked, &hardware).expect("found").value
            };
            let open = longest(None);
            for &offload_inputs in by_hand {
                let placed = longest(Some(offload_inputs));
                assert!(open >= placed, "{id}, {offload_inputs}: {open} and {placed}");
            }
        }
    }
}

#[test]
fn the_largest_rank_that_is_planned_for_is_not_said_to_be_the_models() {
    let shape = super::shape(8192, 2, 64, 8, 28_672, 1000, true);
    let mut asked = config();
    asked.lora.targets = vec![Target::Q, Target::O, Target::Down];
    let found = largest_rank(&shape, &examples(100, 50, 300), &asked, &computer("h100-sxm-80gb")).expect("found");
    assert_eq!((found.value, found.bound), (4096, Bound::Most));
    assert!(found.words.ends_with("more is not tried."), "{}", found.words);
}

#[test]
fn the_largest_rank_and_micro_batch_fit_and_one_more_does_not() {
    let data = examples(900, 50, 1500);
    for (shape, id) in [(llama_8b(), "rtx-3060-12gb"), (llama_1b(), "rtx-2060-6gb"), (llama_1b(), "no-card")] {
        let hardware = computer(id);
        let mut asked = config();
        asked.base = Some(BaseFormat::Nf4);
        for found in [
            largest_rank(&shape, &data, &asked, &hardware).expect("found"),
            largest_micro_batch(&shape, &data, &asked, &hardware).expect("found"),
        ] {
            let plan_of = |config: &RunConfig| plan(&shape, &data, config, &hardware).expect("planned");
            let again = plan_of(&found.config);
            assert!(again.fits, "{id} {:?}", found.quantity);
            assert_eq!((again.settings, again.planned_bytes), (found.settings.clone(), found.planned_bytes));
            let mut more = found.config.clone();
            let value = found.value as usize;
            match found.quantity {
                Quantity::Rank => {
                    assert_eq!(found.settings.lora.rank, value);
                    assert!((found.settings.lora.scale() - asked.lora.scale()).abs() < 1e-6, "alpha follows");
                    remedy::with_rank(&mut more, value + 1);
                }
                _ => {
                    assert_eq!(found.settings.micro_batch, value);
                    more.micro_batch = Some(value + 1);
                }
            }
            let fits = plan_of(&more).fits;
            assert_eq!(fits, found.bound != Bound::Memory, "{id} {:?} {value}", found.quantity);
        }
    }
}

#[test]
fn the_largest_model_fits_and_the_next_larger_does_not() {
    let models = &crate::model::Catalogue::bundled().models;
    let data = |_: &ModelShape| with_length(1024);
    let mut last = 0;
    for id in ["rtx-2050-laptop-4gb", "rtx-3060-12gb", "rtx-4090-24gb", "h100-sxm-80gb"] {
        let hardware = computer(id);
        let found = largest_model(models, &data, &config(), &hardware).expect("asked").expect("one fits");
        let shape_of = |id: &Option<String>| {
            let id = id.as_deref().expect("named");
            &models.iter().find(|model| model.id == id).expect("listed").shape
        };
        let shape = shape_of(&found.model);
        assert!(plan(shape, &with_length(1024), &found.config, &hardware).expect("planned").fits);
        let larger: Vec<_> = models.iter().filter(|model| model.shape.params() > shape.params()).collect();
        for model in &larger {
            assert!(
                !plan(&model.shape, &with_length(1024), &config(), &hardware).expect("planned").fits,
                "{}",
                model.id
            );
        }
        assert_eq!(found.next.is_some(), !larger.is_empty());
        assert!(found.value >= last, "{id}: more memory, smaller model");
        last = found.value;
    }
}

#[test]
fn where_not_even_the_least_fits_a_reverse_question_is_answered_with_remedies() {
    let mut hardware = computer("rtx-2060-6gb");
    hardware.cards[0].memory_bytes = 3 << 30;
    let data = examples(500, 50, 300);
    for refused in [
        longest(&llama_8b(), &config(), &hardware),
        largest_rank(&llama_8b(), &data, &config(), &hardware),
        largest_micro_batch(&llama_8b(), &data, &config(), &hardware),
    ] {
        let error = refused.expect_err("8B in 3 GiB");
        assert_eq!(error.code(), "plan.does_not_fit");
        assert!(error.next_step().contains("smaller model"), "{}", error.next_step());
    }
    let large: Vec<_> =
        crate::model::Catalogue::bundled().models.iter().filter(|m| m.id.ends_with("70b")).cloned().collect();
    let none = largest_model(&large, &|_| with_length(512), &config(), &hardware).expect("asked");
    assert!(none.is_none());
}
