//! The TypeScript types of the window are the engine's. `cargo test -p hearth-engine export_bindings` writes them; this
//! test compares them with the files as they were when it was *compiled*, so that exporting in the same test run does
//! not hide that somebody forgot to.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use hearth_engine::config::{ComputeDtype, RunConfig};
use hearth_engine::event::EventLine;
use hearth_engine::export::Proof;
use hearth_engine::gpu_setup::{GpuSetup, GpuSetupProgress};
use hearth_engine::hardware::{Hardware, Profile};
use hearth_engine::plan::{CardTable, Largest, Plan};
use hearth_engine::run::{Inspection, RunSummary};
use ts_rs::{Config, TS};

/// The files that are committed, by name.
macro_rules! committed {
    ($($name:literal),+ $(,)?) => {
        BTreeMap::from([$(($name, include_str!(concat!("../../frontend/src/lib/bindings/", $name, ".ts")))),+])
    };
}

fn committed_files() -> BTreeMap<&'static str, &'static str> {
    committed![
        "Advice",
        "Alternative",
        "AnswerCheck",
        "BaseFormat",
        "Basis",
        "Bound",
        "Budget",
        "Card",
        "CardOutcome",
        "CardReading",
        "CardReport",
        "CardTable",
        "CellPlan",
        "Change",
        "Check",
        "CheckpointConfig",
        "ColumnMapping",
        "ComputeDtype",
        "DataConfig",
        "DataStats",
        "DataUse",
        "Disk",
        "DiskEstimate",
        "ErrorReport",
        "EvaluationConfig",
        "EventLine",
        "Expectation",
        "ExportDtype",
        "ExportKind",
        "Family",
        "FinishReason",
        "Fit",
        "Format",
        "GovernorConfig",
        "GpuPackage",
        "GpuPackageState",
        "GpuSetup",
        "GpuSetupPhase",
        "GpuSetupProgress",
        "GpuSetupReason",
        "Hardware",
        "Host",
        "HostMemory",
        "InspectedDataset",
        "InspectedExample",
        "InspectedModel",
        "InspectedToken",
        "Inspection",
        "Largest",
        "LayerChange",
        "Llama3Scaling",
        "LoraConfig",
        "Measured",
        "MeasuredOverhead",
        "MeasuredRate",
        "Measurements",
        "MemoryReading",
        "MemoryUser",
        "Mig",
        "ModelShape",
        "NextLarger",
        "OptimizerConfig",
        "OptimizerKind",
        "OverLength",
        "Pace",
        "PcieLink",
        "Plan",
        "PlanItem",
        "PlanWarning",
        "PoolReading",
        "Prediction",
        "Price",
        "Prices",
        "Problem",
        "Processor",
        "Profile",
        "ProfileCard",
        "Proof",
        "Quantity",
        "QuietHours",
        "Reason",
        "Recompute",
        "Rehearsal",
        "Remedy",
        "Rope",
        "RunConfig",
        "RunState",
        "RunSummary",
        "Rung",
        "ScheduleKind",
        "Settings",
        "TableCard",
        "TableCell",
        "TableRow",
        "Target",
        "Throttle",
        "TimeEstimate",
        "TimedBatch",
        "TrainEvent",
        "TrainOn",
        "Verdict",
    ]
}

fn stems(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let stem = |entry: fs::DirEntry| entry.path().file_stem().expect("a name").to_string_lossy().into_owned();
    entries.map(|entry| stem(entry.expect("entry"))).collect()
}

/// Everything that crosses to the window, with what it is made of.
fn export_into(folder: &Path) {
    let config = Config::new().with_out_dir(folder).with_large_int("number");
    RunConfig::export_all(&config).expect("RunConfig");
    EventLine::export_all(&config).expect("EventLine");
    GpuSetup::export_all(&config).expect("GpuSetup");
    GpuSetupProgress::export_all(&config).expect("GpuSetupProgress");
    Hardware::export_all(&config).expect("Hardware");
    Profile::export_all(&config).expect("Profile");
    Plan::export_all(&config).expect("Plan");
    CardTable::export_all(&config).expect("CardTable");
    Largest::export_all(&config).expect("Largest");
    Inspection::export_all(&config).expect("Inspection");
    RunSummary::export_all(&config).expect("RunSummary");
    Proof::export_all(&config).expect("Proof");
    ComputeDtype::export_all(&config).expect("ComputeDtype");
}

#[test]
fn bindings_are_current() {
    let folder = tempfile::tempdir().expect("folder");
    export_into(folder.path());
    let committed = committed_files();
    for name in stems(folder.path()) {
        let now = fs::read_to_string(folder.path().join(format!("{name}.ts"))).expect("exported");
        let was = committed.get(name.as_str()).unwrap_or_else(|| panic!("{name} is not in this test's list: add it"));
        assert_eq!(
            was.replace("\r\n", "\n"),
            now,
            "{name}.ts is not what the engine's type says: run `cargo test -p hearth-engine export_bindings` and commit"
        );
    }
}

#[test]
fn the_list_of_bindings_is_the_folder() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../frontend/src/lib/bindings"));
    let listed: BTreeSet<String> = committed_files().keys().map(ToString::to_string).collect();
    assert_eq!(listed, stems(folder), "this test's list and frontend/src/lib/bindings differ");
}
