//! The one gate through which memory is taken: it counts, keeps to a limit, and knows a lack of memory when it sees one.
//!
//! Whoever owns buffers owns a [`Held`] beside them: bytes are admitted under the name of what they are for and given back when
//! it is dropped. What is counted, limited and refused belongs to the thread that makes the [`Held`], as a run belongs to the
//! thread that trains it; two runs in one process don't disturb each other.
//!
//! ```text
//! owner ── admit(bytes, site) ──> gate ── limit? fault? ──> tensor
//!                                  └── OutOfMemory { site, bytes, who holds the rest }
//! ```
//!
//! Tests let any site fail ([`fail`]): one of the allocations there, several in a row, or all from some point on.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::{DType, Device, Error, Result, Shape, Tensor, WithDType};

/// What memory is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)] // [`Site::label`] says what they are
pub enum Site {
    BaseWeights,
    Embeddings,
    Norms,
    Adapter,
    Gradients,
    Optimizer,
    Restored,
    Kept,
    Workspace,
    Slot,
    WeightCache,
    Inputs,
    Scratch,
    Losses,
    GradientNorm,
    Cache,
    Answers,
    Checkpoint,
}

impl Site {
    /// Every site there is.
    pub const ALL: [Site; 18] = [
        Site::BaseWeights,
        Site::Embeddings,
        Site::Norms,
        Site::Adapter,
        Site::Gradients,
        Site::Optimizer,
        Site::Restored,
        Site::Kept,
        Site::Workspace,
        Site::Slot,
        Site::WeightCache,
        Site::Inputs,
        Site::Scratch,
        Site::Losses,
        Site::GradientNorm,
        Site::Cache,
        Site::Answers,
        Site::Checkpoint,
    ];

    /// In words, as inside a sentence.
    pub fn label(self) -> &'static str {
        match self {
            Site::BaseWeights => "base weights",
            Site::Embeddings => "embeddings and head",
            Site::Norms => "norms",
            Site::Adapter => "adapter",
            Site::Gradients => "gradients",
            Site::Optimizer => "optimizer state",
            Site::Restored => "a checkpoint that is read",
            Site::Kept => "kept activations",
            Site::Workspace => "layer and loss workspace",
            Site::Slot => "dequantisation slot",
            Site::WeightCache => "weights kept dequantised",
            Site::Inputs => "batch and positions",
            Site::Scratch => "scratch of the attention",
            Site::Losses => "losses",
            Site::GradientNorm => "gradient norm",
            Site::Cache => "keys and values of the answers",
            Site::Answers => "workspace of the answers",
            Site::Checkpoint => "a checkpoint that is written",
        }
    }

    /// Of what a plan has no line for: it counts against what a limit sets aside.
    fn is_runtime(self) -> bool {
        matches!(self, Site::Scratch | Site::Losses | Site::GradientNorm)
    }

    /// Held for the time of one piece of work, which comes again.
    fn comes_and_goes(self) -> bool {
        matches!(self, Site::Losses | Site::GradientNorm | Site::Cache | Site::Answers | Site::Checkpoint)
    }
}

/// Whose memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    System,
    Card,
}

impl Place {
    fn of(device: &Device) -> Self {
        if device.is_cpu() { Place::System } else { Place::Card }
    }
}

/// There was no memory for something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// For what; unknown where a library wanted it.
    pub site: Option<Site>,
    /// How much; unknown where a library wanted it.
    pub needed_bytes: Option<u64>,
    /// The limit that it would have broken; none where the device itself had no more.
    pub limit_bytes: Option<u64>,
    /// Who holds the memory that this thread's run has taken there, most first.
    pub held: Vec<(Site, u64)>,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = self.site.map_or("a library's own work", Site::label);
        write!(f, "out of memory for {what}")?;
        if let Some(bytes) = self.needed_bytes {
            write!(f, " ({bytes} bytes)")?;
        }
        if let Some(limit) = self.limit_bytes {
            write!(f, ", beyond the limit of {limit} bytes")?;
        }
        Ok(())
    }
}

impl std::error::Error for OutOfMemory {}

impl From<OutOfMemory> for Error {
    /// Through the tensor library and back ([`shortage`]) without losing its type.
    fn from(shortage: OutOfMemory) -> Self {
        Error::Io(io::Error::new(io::ErrorKind::OutOfMemory, shortage))
    }
}

/// The lack of memory behind an error of the tensor library, if it is one: refused by the gate, or said by the driver or a library in
/// the names that NVIDIA gives it.
pub fn shortage(error: &Error) -> Option<OutOfMemory> {
    match error {
        Error::Io(error) => error.get_ref()?.downcast_ref::<OutOfMemory>().cloned(),
        Error::WithBacktrace { inner, .. } | Error::Context { inner, .. } | Error::WithPath { inner, .. } => {
            shortage(inner)
        }
        other => {
            const SIGNS: [&str; 3] =
                ["CUDA_ERROR_OUT_OF_MEMORY", "CUBLAS_STATUS_ALLOC_FAILED", "cudaErrorMemoryAllocation"];
            let text = other.to_string();
            let is_one = SIGNS.iter().any(|sign| text.contains(sign));
            is_one.then(|| with_gate(|gate| gate.refusal(Place::Card, None, None, None)))
        }
    }
}

/// Which allocations fail: of `site` (of any where it is none) `n`, after `skip` more have succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Fault {
    pub site: Option<Site>,
    pub skip: usize,
    pub n: usize,
}

#[derive(Clone, Copy, Debug)]
struct LimitTo {
    place: Place,
    bytes: u64,
    runtime_bytes: u64,
}

#[derive(Debug, Default)]
struct State {
    limit: Option<LimitTo>,
    held: BTreeMap<(Place, Site), u64>,
    peak: BTreeMap<Place, u64>,
    site_peak: BTreeMap<(Place, Site), u64>,
    n_admitted: BTreeMap<Site, usize>,
    fault: Option<Fault>,
}

impl State {
    fn held_bytes(&self, place: Place) -> u64 {
        self.held.iter().filter(|((at, _), _)| *at == place).map(|(_, bytes)| bytes).sum()
    }

    fn refusal(
        &self,
        place: Place,
        site: Option<Site>,
        needed_bytes: Option<u64>,
        limit_bytes: Option<u64>,
    ) -> OutOfMemory {
        let here = self.held.iter().filter(|((at, _), bytes)| *at == place && **bytes > 0);
        let mut held: Vec<(Site, u64)> = here.map(|((_, site), bytes)| (*site, *bytes)).collect();
        held.sort_by_key(|&(_, bytes)| std::cmp::Reverse(bytes));
        OutOfMemory { site, needed_bytes, limit_bytes, held }
    }

    /// True where this allocation is one of those that a test wants to fail.
    fn is_faulty(&mut self, site: Site) -> bool {
        let Some(fault) = self.fault.as_mut().filter(|fault| fault.site.is_none_or(|at| at == site)) else {
            return false;
        };
        if fault.skip > 0 {
            fault.skip -= 1;
            return false;
        }
        let strikes = fault.n > 0;
        fault.n = fault.n.saturating_sub(1);
        strikes
    }

    fn admit(&mut self, bytes: u64, place: Place, site: Site) -> std::result::Result<(), OutOfMemory> {
        *self.n_admitted.entry(site).or_default() += 1;
        if self.is_faulty(site) {
            return Err(self.refusal(place, Some(site), Some(bytes), None));
        }
        if let Some(limit) = self.limit.filter(|limit| limit.place == place) {
            let here = self.held.iter().filter(|((at, _), _)| *at == place);
            let (mut runtime, mut listed) = (0u64, 0u64);
            for (is_runtime, bytes) in
                here.map(|((_, site), held)| (site.is_runtime(), *held)).chain([(site.is_runtime(), bytes)])
            {
                let sum = if is_runtime { &mut runtime } else { &mut listed };
                *sum = sum.saturating_add(bytes);
            }
            if listed.saturating_add(runtime.max(limit.runtime_bytes)) > limit.bytes {
                return Err(self.refusal(place, Some(site), Some(bytes), Some(limit.bytes)));
            }
        }
        let held = self.held_bytes(place).saturating_add(bytes);
        let here = self.held.entry((place, site)).or_default();
        *here += bytes;
        let site_peak = self.site_peak.entry((place, site)).or_default();
        *site_peak = (*site_peak).max(*here);
        let peak = self.peak.entry(place).or_default();
        *peak = (*peak).max(held);
        Ok(())
    }

    fn give_back(&mut self, bytes: u64, place: Place, site: Site) {
        if let Some(held) = self.held.get_mut(&(place, site)) {
            *held = held.saturating_sub(bytes);
        }
    }
}

type Gate = Arc<Mutex<State>>;

thread_local! {
    static GATE: RefCell<Gate> = RefCell::default();
}

fn lock(gate: &Gate) -> MutexGuard<'_, State> {
    gate.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with_gate<R>(f: impl FnOnce(&mut State) -> R) -> R {
    GATE.with_borrow(|gate| f(&mut lock(gate)))
}

/// Bytes that were admitted to the owner of some buffers; they count as held until this is dropped.
#[derive(Debug)]
pub struct Held {
    gate: Gate,
    taken: Mutex<Vec<(u64, Place, Site)>>,
}

impl Default for Held {
    fn default() -> Self {
        Self::new()
    }
}

impl Held {
    /// Nothing yet, of this thread's gate.
    pub fn new() -> Self {
        Self { gate: GATE.with_borrow(Arc::clone), taken: Mutex::default() }
    }

    /// Asks for `bytes` of the device's memory for `site`, which somebody else will take.
    ///
    /// # Errors
    /// [`OutOfMemory`], as an error of the tensor library, where the limit forbids them.
    pub fn admit(&self, bytes: u64, device: &Device, site: Site) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let place = Place::of(device);
        lock(&self.gate).admit(bytes, place, site)?;
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).push((bytes, place, site));
        Ok(())
    }

    /// A tensor of zeros for `site`. On the processor its pages are there when this returns: an untouched one would be counted only
    /// when a step first writes it, and a machine that has too little would fail in the middle of the run instead of before it.
    ///
    /// # Errors
    /// [`OutOfMemory`] where the limit or the device has no room for it.
    pub fn zeros(&self, shape: impl Into<Shape>, dtype: DType, device: &Device, site: Site) -> Result<Tensor> {
        let shape = shape.into();
        let bytes = (shape.elem_count() * dtype.size_in_bytes()) as u64;
        self.admit(bytes, device, site)?;
        let tensor =
            if device.is_cpu() { on_processor(shape, dtype, site) } else { Tensor::zeros(shape, dtype, device) };
        tensor.map_err(|error| {
            // It was not taken after all.
            if let Some((bytes, place, site)) = self.taken.lock().unwrap_or_else(PoisonError::into_inner).pop() {
                lock(&self.gate).give_back(bytes, place, site);
            }
            match shortage(&error) {
                Some(_) => refused(bytes, device, site),
                None => error,
            }
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let taken = std::mem::take(self.taken.get_mut().unwrap_or_else(PoisonError::into_inner));
        let mut gate = lock(&self.gate);
        for (bytes, place, site) in taken {
            gate.give_back(bytes, place, site);
        }
    }
}

/// The error for what a device would not give although the gate let it through.
fn refused(bytes: u64, device: &Device, site: Site) -> Error {
    with_gate(|gate| gate.refusal(Place::of(device), Some(site), Some(bytes), None)).into()
}

/// Written zeros, with an error instead of the end of the process where the system has no room.
fn on_processor(shape: Shape, dtype: DType, site: Site) -> Result<Tensor> {
    fn zeros<T: WithDType>(shape: Shape, site: Site) -> Result<Tensor> {
        let n = shape.elem_count();
        let mut values: Vec<T> = Vec::new();
        values.try_reserve_exact(n).map_err(|_| refused((n * size_of::<T>()) as u64, &Device::Cpu, site))?;
        values.resize(n, T::from_f64(0.0));
        Tensor::from_vec(values, shape, &Device::Cpu)
    }
    match dtype {
        DType::F32 => zeros::<f32>(shape, site),
        DType::F64 => zeros::<f64>(shape, site),
        DType::U8 => zeros::<u8>(shape, site),
        DType::U32 => zeros::<u32>(shape, site),
        DType::BF16 => zeros::<half::bf16>(shape, site),
        DType::F16 => zeros::<half::f16>(shape, site),
        _ => Tensor::zeros(shape, dtype, &Device::Cpu),
    }
}

/// A limit to what this thread's gate admits; none any more when dropped.
#[derive(Debug)]
#[must_use = "the limit is lifted when this is dropped"]
pub struct Limit(Gate);

/// From here on this thread holds at most `bytes` of the device's memory, of which `runtime_bytes` are set aside for what no plan lists
/// by name: scratch of threads and libraries, and the few numbers that come back from a step.
pub fn limit(bytes: u64, runtime_bytes: u64, device: &Device) -> Limit {
    with_gate(|gate| gate.limit = Some(LimitTo { place: Place::of(device), bytes, runtime_bytes }));
    Limit(GATE.with_borrow(Arc::clone))
}

impl Drop for Limit {
    fn drop(&mut self) {
        lock(&self.0).limit = None;
    }
}

/// Bytes of the device's memory that this thread's gate has admitted and not got back.
pub fn held_bytes(device: &Device) -> u64 {
    with_gate(|gate| gate.held_bytes(Place::of(device)))
}

/// The most that [`held_bytes`] was.
pub fn peak_bytes(device: &Device) -> u64 {
    with_gate(|gate| gate.peak.get(&Place::of(device)).copied().unwrap_or(0))
}

/// Bytes of the device's memory that work which has been done before will ask for again, beyond what is held now.
pub fn returning_bytes(device: &Device) -> u64 {
    let place = Place::of(device);
    with_gate(|gate| {
        let peaks = gate.site_peak.iter().filter(|((at, site), _)| *at == place && site.comes_and_goes());
        peaks.map(|(at, peak)| peak - gate.held.get(at).copied().unwrap_or(0)).sum()
    })
}

/// How often each site asked this thread's gate, those that were refused included.
pub fn n_admitted() -> BTreeMap<Site, usize> {
    with_gate(|gate| gate.n_admitted.clone())
}

/// Lets allocations of this thread fail as they would without memory. For tests: nothing in the engine calls it.
pub fn fail(fault: Fault) {
    with_gate(|gate| gate.fault = Some(fault));
}

/// Nothing fails any more, and a new count of [`n_admitted`] begins. True where the fault had struck as often as it was to.
pub fn relent() -> bool {
    with_gate(|gate| {
        gate.n_admitted.clear();
        gate.fault.take().is_some_and(|fault| fault.n == 0)
    })
}

/// Gives memory that is held for quick reuse back to the device: what the driver's pool keeps of freed tensors.
///
/// # Errors
/// Where the driver refuses.
pub fn free_caches(device: &Device) -> Result<()> {
    #[cfg(feature = "cuda")]
    if device.is_cuda() {
        return super::cuda::trim(device);
    }
    let _ = device;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPU: Device = Device::Cpu;

    fn ask(held: &Held, n: usize, site: Site) -> std::result::Result<Tensor, OutOfMemory> {
        held.zeros(n, DType::F32, &CPU, site).map_err(|error| shortage(&error).expect("a lack of memory"))
    }

    #[test]
    fn what_is_dropped_is_given_back() {
        let before = held_bytes(&CPU);
        let held = Held::new();
        let tensor = ask(&held, 10, Site::Kept).unwrap();
        assert_eq!(tensor.to_vec1::<f32>().unwrap(), [0.0; 10]);
        assert_eq!(held_bytes(&CPU) - before, 40);
        let other = Held::new();
        other.admit(7, &CPU, Site::Cache).unwrap();
        drop(held);
        assert_eq!(held_bytes(&CPU) - before, 7);
        assert_eq!(peak_bytes(&CPU), before + 47);
        // Buffers that stay are not waited for; the cache is there already and comes back when it is gone.
        assert_eq!(returning_bytes(&CPU), 0);
        drop(other);
        assert_eq!(returning_bytes(&CPU), 7);
    }

    #[test]
    fn a_limit_refuses_with_site_bytes_and_holders_and_is_lifted_again() {
        let held = Held::new();
        let limit = limit(100, 0, &CPU);
        ask(&held, 15, Site::Workspace).unwrap();
        ask(&held, 5, Site::Kept).unwrap();
        let refused = ask(&held, 10, Site::Cache).unwrap_err();
        assert_eq!((refused.site, refused.needed_bytes, refused.limit_bytes), (Some(Site::Cache), Some(40), Some(100)));
        assert_eq!(refused.held, [(Site::Workspace, 60), (Site::Kept, 20)]);
        assert!(refused.to_string().contains("40 bytes"), "{refused}");
        // What was refused is not held: this fits exactly.
        ask(&held, 5, Site::Cache).unwrap();
        drop(limit);
        ask(&held, 10, Site::Cache).unwrap();
    }

    #[test]
    fn what_no_plan_lists_comes_out_of_what_is_set_aside() {
        let held = Held::new();
        let _limit = limit(100, 40, &CPU);
        ask(&held, 15, Site::Kept).unwrap();
        // All of the aside, and not a byte beyond, although nobody holds it.
        ask(&held, 10, Site::Scratch).unwrap();
        assert!(ask(&held, 1, Site::Losses).is_err());
        assert!(ask(&held, 1, Site::Kept).is_err());
    }

    #[test]
    fn faults_strike_where_when_and_as_often_as_asked() {
        let held = Held::new();
        fail(Fault { site: Some(Site::Kept), skip: 1, n: 2 });
        let strikes: Vec<bool> = (0..5).map(|_| ask(&held, 1, Site::Kept).is_err()).collect();
        assert_eq!(strikes, [false, true, true, false, false]);
        assert!(ask(&held, 1, Site::Slot).is_ok());
        assert_eq!(n_admitted()[&Site::Kept], 5);
        assert!(relent());
        fail(Fault { site: None, skip: 2, n: usize::MAX });
        let sites = [Site::Kept, Site::Slot, Site::Cache, Site::Kept];
        let strikes: Vec<bool> = sites.iter().map(|&site| ask(&held, 1, site).is_err()).collect();
        assert_eq!(strikes, [false, false, true, true]);
        assert!(!relent(), "it was to go on");
        assert!(n_admitted().is_empty());
    }

    #[test]
    fn a_gate_is_its_threads_own() {
        fail(Fault { site: None, skip: 0, n: usize::MAX });
        let elsewhere = std::thread::spawn(|| ask(&Held::new(), 1, Site::Kept).is_ok());
        assert!(elsewhere.join().unwrap());
        assert!(ask(&Held::new(), 1, Site::Kept).is_err());
        relent();
    }

    #[test]
    fn memory_that_the_system_does_not_have_is_an_error_and_no_crash() {
        let held = Held::new();
        let before = held_bytes(&CPU);
        let refused = ask(&held, 1 << 60, Site::Kept).unwrap_err();
        assert_eq!((refused.site, refused.needed_bytes), (Some(Site::Kept), Some(1 << 62)));
        assert_eq!(held_bytes(&CPU), before);
    }

    #[test]
    fn what_drivers_and_libraries_say_is_understood() {
        let said = [
            Error::Msg(r#"DriverError(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")"#.into()),
            Error::Msg("cuBLASLt could not run a product: CublasError(CUBLAS_STATUS_ALLOC_FAILED)".into()).bt(),
            Error::Cuda(r#"DriverError(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")"#.into()),
        ];
        for error in said {
            let shortage = shortage(&error).unwrap_or_else(|| panic!("{error}"));
            assert_eq!((shortage.site, shortage.needed_bytes), (None, None));
        }
        for error in [Error::Msg("DriverError(CUDA_ERROR_ILLEGAL_ADDRESS)".into()), Error::UnwrapNone] {
            assert_eq!(shortage(&error), None);
        }
        let io = Error::Io(io::Error::new(io::ErrorKind::NotFound, "no file"));
        assert_eq!(shortage(&io), None);
    }
}
