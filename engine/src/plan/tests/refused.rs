//! What does not fit, or cannot be had, and what to change then.

use super::*;

/// More than any small card takes, of a model that was made for more.
const LONG: usize = 24_576;

fn long_8b() -> ModelShape {
    ModelShape { max_positions: 1 << 17, ..llama_8b() }
}

#[test]
fn the_length_is_shortened_to_the_longest_that_fits_though_shorter_ones_leave_no_example() {
    // At half the length none is left, and at three quarters it does not fit.
    let (shape, data, hardware) = (long_8b(), examples(1000, 13_000, 23_000), computer("rtx-2060-6gb"));
    let mut asked = config();
    asked.data.length = Some(LONG);
    let refused = plan(&shape, &data, &asked, &hardware).expect("planned");
    let last = refused.remedies.last().expect("some");
    assert_eq!((refused.fits, last.setting.as_str(), last.enough), (false, "data.length", true), "{last:?}");
    let longest: usize = last.value.parse().expect("a number");
    for (length, fits) in [(longest, true), (longest + propose::LENGTH_STEP, false)] {
        asked.data.length = Some(length);
        assert_eq!(plan(&shape, &data, &asked, &hardware).expect("examples are left").fits, fits, "{length}");
    }
}

#[test]
fn what_follows_a_raised_limit_is_what_follows_without_a_limit() {
    let (shape, data, hardware) = (long_8b(), examples(1000, 50, 16_000), computer("rtx-2060-6gb"));
    let mut asked = config();
    asked.data.length = Some(LONG);
    let plan_of = |config: &RunConfig| plan(&shape, &data, config, &hardware).expect("planned");
    let unlimited = plan_of(&asked);
    asked.memory_limit_bytes = Some(4 << 30);
    let limited = plan_of(&asked);
    assert_eq!((limited.remedies[0].setting.as_str(), limited.remedies[0].enough), ("memory_limit_bytes", false));
    // There the first are the other programs.
    assert_eq!(limited.remedies[1..], unlimited.remedies[1..]);
    for remedy in &limited.remedies {
        match remedy.setting.as_str() {
            "memory_limit_bytes" => asked.memory_limit_bytes = Some(remedy.value.parse().expect("bytes")),
            "data.length" => asked.data.length = Some(remedy.value.parse().expect("a number")),
            other => panic!("{other}"),
        }
    }
    assert!(plan_of(&asked).fits);
}

#[test]
fn what_was_kept_off_system_memory_by_hand_is_given_back_before_anything_is_lost() {
    let mut asked = config();
    asked.data.length = Some(2048);
    (asked.n_layers_streamed, asked.offload_inputs, asked.n_layers_eased) = (Some(0), Some(false), Some(8));
    let (shape, data, hardware) = (llama_8b(), examples(500, 50, 1900), computer("rtx-2060-6gb"));
    let refused = plan(&shape, &data, &asked, &hardware).expect("planned");
    let settings: Vec<&str> = refused.remedies.iter().map(|remedy| remedy.setting.as_str()).collect();
    assert_eq!(settings, ["other_programs", "recompute", "host_memory"], "{:?}", refused.remedies);
    assert!(refused.remedies[2].enough);
    (asked.n_layers_streamed, asked.offload_inputs) = (None, None);
    (asked.recompute, asked.n_layers_eased) = (Some(Recompute::C0), None);
    assert!(plan(&shape, &data, &asked, &hardware).expect("planned").fits);
}

#[test]
fn what_the_driver_keeps_is_no_other_program() {
    let mut hardware = computer("rtx-2060-6gb");
    let words = |hardware: &Hardware| {
        let plan = plan(&llama_8b(), &examples(500, 50, 300), &config(), hardware).expect("planned");
        let words = plan.remedies.iter().find(|remedy| remedy.setting == "other_programs").map(|r| r.words.clone());
        assert!(!plan.fits);
        words
    };
    let card = &mut hardware.cards[0];
    (card.memory_bytes, card.memory_free_bytes) = (3 << 30, Some(2 << 30));
    card.memory_reserved_bytes = Some(1 << 30);
    assert_eq!(words(&hardware), None);
    hardware.cards[0].memory_reserved_bytes = Some(768 << 20);
    assert!(words(&hardware).is_some_and(|words| words.contains("256 MiB")));
}

#[test]
fn a_plan_that_fits_nowhere_lays_out_few_steps() {
    let shape = shape(8192, 80, 64, 8, 28_672, 128_256, false);
    let (data, hardware, sums) = (examples(900, 50, 1500), computer("rtx-4090-24gb"), Sums::default());
    let (task, config) = (Task::new(&shape, &data, &hardware, &sums), config());
    let least = task.propose(&config).expect("planned");
    assert!(!least.fits());
    remedy::remedies(&task, &config, &least);
    assert!(sums.n_known() < 400, "{}", sums.n_known());
}

#[test]
fn heads_that_no_kernel_is_for_are_refused_on_a_card_and_planned_on_the_processor() {
    // As open_llama_3b has them.
    let shape = shape(3200, 26, 32, 32, 8640, 32_000, false);
    let on = |hardware: &Hardware| plan(&shape, &examples(500, 50, 300), &config(), hardware);
    let error = on(&computer("rtx-3060-12gb")).expect_err("refused");
    assert_eq!(error.code(), "plan.no_kernel");
    assert!(error.to_string().contains("heads 100 wide"), "{error}");
    assert!(error.next_step().contains("HEARTH_ENGINE"), "{}", error.next_step());
    assert!(on(&no_card()).is_ok());
}
