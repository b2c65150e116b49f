//! What is safe at every moment: the best adapter, what a full disk left, what an evaluation is in the middle of.

use std::cell::Cell;

use super::*;
use crate::hardware::CardSample;

/// What an evaluation said: step, loss, whether it was the best; and how many answers there are.
fn evaluations(folder: &Path) -> (Vec<(usize, f64, bool)>, usize) {
    let history = History::replay(read(folder).unwrap());
    let events = || history.lines().iter().map(|line| &line.event);
    let losses = events().filter_map(|event| match *event {
        TrainEvent::Evaluation { step, loss, best, .. } => Some((step, loss, best)),
        _ => None,
    });
    (losses.collect(), events().filter(|event| matches!(event, TrainEvent::Sample { .. })).count())
}

/// Everything that must be the same however often a run was ended.
fn whole(folder: &Path, toy: &Toy) -> impl PartialEq + use<> {
    (toy.weights(), losses(folder), evaluations(folder))
}

#[test]
fn the_best_adapter_stays_where_a_better_one_had_no_memory_to_be_saved() {
    let checkpoints = CheckpointConfig { every_seconds: 3600, every_steps: None, keep: 1 };
    let settings = Settings { checkpoints, ..settings() };
    // Of steps 4, 8, 12, 16 and 17. At `fails_at` the checkpoint fails twice: as it is, and with what could be freed.
    let go = |evaluations: [f64; 5], fails_at: usize| {
        let (folder, mut toy, mut warnings) = (tempfile::tempdir().unwrap(), Toy::new(), Vec::new());
        toy.evaluations = evaluations.to_vec();
        let outcome = go(folder.path(), &settings, &mut toy, &mut |event| match event {
            TrainEvent::Evaluation { step, .. } if *step == fails_at => {
                memory::fail(memory::Fault { site: Some(Site::Checkpoint), skip: 0, n: 2 });
            }
            TrainEvent::Warning { code, .. } => warnings.push(code.clone()),
            _ => {}
        });
        memory::relent();
        assert_eq!(warnings, ["run.checkpoint_skipped"]);
        let Outcome::Finished { best_step, .. } = outcome.unwrap() else { panic!("it finished") };
        (best_step, Checkpoints::new(folder.path()).steps())
    };
    assert_eq!(go([3.0, 2.0, 1.0, 4.0, 5.0], 12), (Some(8), vec![8, 17]));
    // The last one is tried once more.
    assert_eq!(go([3.0, 2.0, 4.0, 5.0, 1.0], 17), (Some(17), vec![17]));
}

#[test]
fn what_fills_the_disk_between_two_checkpoints_costs_no_step() {
    let settings = settings();
    let (folder, mut toy) = (tempfile::tempdir().unwrap(), Toy::new());
    go(folder.path(), &settings, &mut toy, &mut |_| {}).unwrap();
    let (alone, alone_losses) = (whole(folder.path(), &toy), losses(folder.path()));
    // The line of step 7 finds it full, or that of step 8, after which an evaluation is due.
    for last in [6, 7] {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(folder.path());
        checkpoints.reserve(1 << 12).unwrap();
        let error = go(folder.path(), &settings, &mut Toy::new(), &mut |event| {
            if matches!(event, TrainEvent::Step { step, .. } if *step == last) {
                arm(0, Fault::DiskFullOnce);
            }
        })
        .unwrap_err();
        disarm();
        assert!(matches!(error, Error::DiskFull { .. }), "{error:?}");
        let state = checkpoints.newest().0.unwrap();
        assert_eq!((state.step, state.owes_evaluation), (last + 1, last == 7));
        assert_eq!(losses(folder.path()), alone_losses[..=last]);
        let mut toy = Toy::new();
        go(folder.path(), &settings, &mut toy, &mut |_| {}).unwrap();
        assert!(whole(folder.path(), &toy) == alone, "the disk was full after step {last}");
    }
}

/// Every step is saved, so one that is evaluated is saved before that too.
fn always_saving() -> Settings {
    let checkpoints = CheckpointConfig { every_seconds: 0, every_steps: None, keep: 1 };
    // Three groups of held-out samples.
    Settings { n_steps: 4, evaluate_every_steps: 2, micro_batch: 1, accumulation: 6, checkpoints, ..settings() }
}

#[test]
fn a_run_that_crashes_at_any_point_of_an_evaluation_evaluates_again_and_comes_out_the_same() {
    let settings = always_saving();
    let (folder, mut toy) = (tempfile::tempdir().unwrap(), Toy::new());
    go(folder.path(), &settings, &mut toy, &mut |_| {}).unwrap();
    let alone = whole(folder.path(), &toy);
    let mut n_owing = 0;
    for point in 0.. {
        let folder = tempfile::tempdir().unwrap();
        arm(point, Fault::Crash);
        let crash = std::panic::catch_unwind(|| go(folder.path(), &settings, &mut Toy::new(), &mut |_| {}));
        disarm();
        if crash.is_ok() {
            break;
        }
        let state = Checkpoints::new(folder.path()).newest().0;
        n_owing += usize::from(state.is_some_and(|state| state.owes_evaluation));
        let mut toy = Toy::new();
        go(folder.path(), &settings, &mut toy, &mut |_| {}).unwrap();
        assert!(whole(folder.path(), &toy) == alone, "crash at point {point}");
    }
    assert!(n_owing > 10, "only {n_owing} crashes between a checkpoint and the end of its evaluation");
}

#[test]
fn a_stop_is_obeyed_between_the_groups_of_an_evaluation_which_whoever_goes_on_does_again() {
    let settings = Settings { checkpoints: settings().checkpoints, ..always_saving() };
    let (folder, mut toy) = (tempfile::tempdir().unwrap(), Toy::new());
    go(folder.path(), &settings, &mut toy, &mut |_| {}).unwrap();
    let alone = whole(folder.path(), &toy);

    let folder = tempfile::tempdir().unwrap();
    let (control, n_looks) = (Control::new(folder.path()), Cell::new(None));
    // Somebody looks before each group; after the second look a stop is asked.
    let mut clock = Governor::clock(|| None);
    let look: Look<'_> = Box::new(|| {
        n_looks.set(n_looks.get().map(|n: usize| n + 1));
        if n_looks.get() == Some(2) {
            control.ask_stop().unwrap();
        }
        clock()
    });
    let mut toy = Toy::new();
    let outcome = go_governed(folder.path(), &settings, look, &mut toy, &mut |event| {
        if matches!(event, TrainEvent::Phase { name } if name == "evaluate") {
            n_looks.set(Some(0));
        }
    });
    assert_eq!(outcome.unwrap(), Outcome::Stopped { step: 2 });
    assert_eq!(
        (toy.n_evaluations, evaluations(folder.path())),
        (2, (vec![], 0)),
        "two of three groups, and nothing said"
    );
    assert!(Checkpoints::new(folder.path()).newest().0.unwrap().owes_evaluation);
    let mut toy = Toy::new();
    go(folder.path(), &settings, &mut toy, &mut |_| {}).unwrap();
    assert!(whole(folder.path(), &toy) == alone);
}

#[test]
fn what_a_run_holds_of_a_card_is_known_from_its_buffers_on_and_not_from_its_first_step() {
    const GIB: u64 = 1 << 30;
    let reading = CardReading { used_bytes: 90 * GIB, total_bytes: 96 * GIB, ..CardReading::default() };
    let sample = CardSample { reading, driver_bytes: 0 };
    let watch = CardWatch::start(move || Some(sample.clone()), Duration::from_millis(5));
    let mut seen = None;
    let mut first = |training: &mut Training<'_, '_, Toy>| {
        training.memory = MemoryMeter::of_all();
        training.card = Some(watch.clone());
        training.ready()?;
        let deadline = Instant::now() + Duration::from_secs(5);
        while seen.is_none() && Instant::now() < deadline {
            seen = watch.newest().and_then(|reading| reading.others_bytes);
            sleep(Duration::from_millis(1));
        }
        Ok(())
    };
    let folder = tempfile::tempdir().unwrap();
    let look = Governor::clock(|| None);
    go_after(&mut first, folder.path(), &settings(), look, &mut Toy::new(), &mut |_| {}).unwrap();
    assert!(seen.is_some_and(|bytes| bytes < 90 * GIB), "{seen:?}");
}
