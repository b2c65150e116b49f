//! A step allocates no tensor: everything it writes was there before it began.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use candle_core::Device;
use hearth_engine::config::*;
use hearth_engine::data::Batch;
use hearth_engine::model::weights::Precision;
use hearth_engine::model::{Adapter, Model, ModelSource};
use hearth_engine::step::Trainer;
use hearth_tests::step::settings;

/// Counts what is allocated while armed. Zeroed allocations are tensors' (`Tensor::zeros`) and large ones too; packing panels of
/// the matrix products are neither: they are aligned to a cache line or more, which no tensor asks for.
struct Counting;

static ARMED: AtomicBool = AtomicBool::new(false);
static N_LARGE: AtomicUsize = AtomicUsize::new(0);
static LARGEST_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Smaller than any activation of the test's batch, larger than the bookkeeping of views and tasks.
const LARGE_BYTES: usize = 8 * 1024;

fn note(layout: Layout) {
    if ARMED.load(Ordering::Relaxed) && layout.align() < 64 && layout.size() >= LARGE_BYTES {
        N_LARGE.fetch_add(1, Ordering::Relaxed);
        LARGEST_BYTES.fetch_max(layout.size(), Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout);
        // SAFETY: the caller's promise is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        note(Layout::from_size_align(new_size, layout.align()).unwrap_or(layout));
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, new_size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_step_allocates_no_tensor_in_any_mode() {
    let source = ModelSource::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens/tiny-llama3")).unwrap();
    for recompute in [Recompute::N, Recompute::C1, Recompute::C0] {
        for (base, dropout) in [(BaseFormat::F32, 0.0), (BaseFormat::Nf4, 0.1)] {
            let lora = LoraConfig { dropout, ..settings().lora };
            let optimizer = OptimizerKind::AdamW8;
            let settings = Settings { base, lora: lora.clone(), recompute, optimizer, ..settings() };
            let model = Model::load(&source, &lora, Precision::f32(base), &Device::Cpu).unwrap();
            let adapter = Adapter::new(source.shape(), &lora, 1, &Device::Cpu).unwrap();
            let mut trainer = Trainer::new(model, adapter, &settings).unwrap();
            let ids: Vec<u32> = (0..128).map(|i| 3 + i % 250).collect();
            let learned = vec![true; ids.len()];
            let batch = Batch::from_documents([(&ids[..], &learned[..]), (&ids[..100], &learned[..100])]);
            // The first step fills the threads' scratch and the panels of the matrix products.
            let mut step = |armed: bool| {
                ARMED.store(armed, Ordering::Relaxed);
                trainer.micro_batch(&batch, batch.n_supervised(), 1).unwrap();
                trainer.optimizer_step(1e-3).unwrap();
                trainer.evaluate(&batch).unwrap();
                ARMED.store(false, Ordering::Relaxed);
            };
            step(false);
            N_LARGE.store(0, Ordering::Relaxed);
            step(true);
            let (n, largest) = (N_LARGE.load(Ordering::Relaxed), LARGEST_BYTES.load(Ordering::Relaxed));
            assert_eq!(n, 0, "{recompute:?} {base:?}: {n} allocations of up to {largest} bytes inside a step");
        }
    }
    // The counter counts: a tensor of an activation's size is seen.
    ARMED.store(true, Ordering::Relaxed);
    let tensor = candle_core::Tensor::zeros((128, 48), candle_core::DType::F32, &Device::Cpu).unwrap();
    ARMED.store(false, Ordering::Relaxed);
    assert!(tensor.elem_count() > 0 && N_LARGE.load(Ordering::Relaxed) > 0);
}
