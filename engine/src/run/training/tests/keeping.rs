//! What is safe at every moment: the best adapter, what a full disk left, what an evaluation is in the middle of.

use super::*;

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
