//! A library with the names of the CUDA driver's functions. **It computes nothing**: kernels are
//! counted and never run, copies go between pieces of host memory, and every call returns at once.
//!
//! It is there to see, on any machine, what the library asks of a driver: tests open it as
//! `libcuda.so.1` and read the counts ([`stand_in_count`]). It pretends to be a device of compute
//! capability 9.0 whose work is done after a number of further launches ([`stand_in_set_lag`]).

mod event;
mod fault;
mod memory;
mod order;

use std::alloc::{alloc_zeroed, dealloc};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use event::{Event, is_done, record};
use memory::{fill, free, layout};
use order::Order;

const OK: u32 = 0;
const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;
const NOT_READY: u32 = 600;
const CAPTURE_UNSUPPORTED: u32 = 900;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`
const RELAXED: c_int = 2;

const CONTEXT: usize = 0x1000;

/// What is counted.
#[repr(usize)]
#[derive(Clone, Copy)]
enum Count {
    /// Calls that return when the device is done, or that the driver documents to.
    Waits,
    /// Memory, streams and events that are made.
    Allocations,
    /// Memory that is freed.
    Frees,
    /// Copies in stream order.
    Copies,
    Launches,
    /// Modules that are loaded.
    Loads,
    /// Questions about an address.
    Questions,
    /// Calls that a capture forbids.
    Violations,
    /// Fills of watched memory.
    Fills,
    /// Records of events on streams that are captured, of which the graphs become nodes.
    Captured,
    /// All calls.
    Calls,
    /// Copies to memory that one was made to before, since the counts were last cleared.
    Repeated,
    /// Waits of streams that are captured for events outside their graph.
    External,
    /// Launches on streams that do not wait for all copies of other streams.
    Early,
}

const N_COUNTS: usize = 14;

static COUNTS: [AtomicU64; N_COUNTS] = [const { AtomicU64::new(0) }; N_COUNTS];

/// Launches in all, never cleared: the device's clock.
static CLOCK: AtomicU64 = AtomicU64::new(0);

/// Launches after which an event has completed.
static LAG: AtomicU64 = AtomicU64::new(0);

/// Whether copies take as long as kernels do.
static SLOW_COPIES: AtomicBool = AtomicBool::new(false);

/// Bytes of device memory.
static MEMORY: AtomicU64 = AtomicU64::new(80 << 30);

static STATE: Mutex<State> = Mutex::new(State {
    allocations: BTreeMap::new(),
    pinned: BTreeMap::new(),
    copied_to: BTreeSet::new(),
    captured: BTreeSet::new(),
    busy: BTreeSet::new(),
    order: Order::NEW,
    watched: Watched { start: u64::MAX - WATCHED_BYTES, len: 0 },
    handles: 0x5000,
});

struct State {
    /// Device memory by address.
    allocations: BTreeMap<u64, usize>,
    pinned: BTreeMap<usize, usize>,
    copied_to: BTreeSet<u64>,
    /// Streams that are captured.
    captured: BTreeSet<usize>,
    /// Streams with kernels. The work of others is done at once.
    busy: BTreeSet<usize>,
    /// Copies to the device in stream order, and what comes behind them.
    order: Order,
    watched: Watched,
    handles: usize,
}

/// Memory that fills may not pass the end of.
#[derive(Clone, Copy)]
struct Watched {
    start: u64,
    len: u64,
}

/// Bytes behind a watched start of which a fill is meant for the watched memory.
const WATCHED_BYTES: u64 = 1 << 28;

thread_local! {
    static MODE: Cell<c_int> = const { Cell::new(0) };
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn count(what: Count) {
    COUNTS[what as usize].fetch_add(1, Ordering::Relaxed);
}

/// Counts a call that a capture of any stream forbids threads whose mode is not relaxed.
fn forbidden_in_capture() {
    if MODE.get() != RELAXED && !state().captured.is_empty() {
        count(Count::Violations);
    }
}

/// The count of this number, in the order of the enum in the source.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_count(index: usize) -> u64 {
    COUNTS.get(index).map_or(0, |count| count.load(Ordering::Relaxed))
}

/// Clears all counts.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_clear() {
    COUNTS.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    state().copied_to.clear();
}

/// Has events complete so many launches after they were recorded.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_set_lag(launches: u64) {
    LAG.store(launches, Ordering::Relaxed);
}

/// Has the events behind copies complete as late as those behind kernels.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_slow_copies(are_slow: bool) {
    SLOW_COPIES.store(are_slow, Ordering::Relaxed);
}

/// Sets the bytes of device memory.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_set_memory(bytes: u64) {
    MEMORY.store(bytes, Ordering::Relaxed);
}

/// Whether some allocation of device memory has these bytes in it.
///
/// # Safety
/// There must be so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stand_in_holds(bytes: *const u8, len: usize) -> bool {
    // SAFETY: the caller's promise.
    let wanted = unsafe { std::slice::from_raw_parts(bytes, len) };
    let state = state();
    state.allocations.iter().any(|(&address, &len)| {
        let start = ptr::with_exposed_provenance(address as usize);
        // SAFETY: `cuMemAlloc_v2` allocated it, with this length, and the lock keeps it.
        let memory: &[u8] = unsafe { std::slice::from_raw_parts(start, len) };
        memory.windows(wanted.len()).any(|found| found == wanted)
    })
}

/// Bytes of device memory that are allocated.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_used_bytes() -> u64 {
    used_bytes(&state())
}

/// Bytes of page-locked host memory that are allocated.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_page_locked_bytes() -> u64 {
    state().pinned.values().map(|&len| len as u64).sum()
}

/// Watches memory: fills there are counted, and those that pass its end are violations.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_watch(start: u64, len: u64) {
    state().watched = Watched { start, len };
}

/// Begins or ends the capture of a stream.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_capture(stream: usize, is_captured: bool) {
    match is_captured {
        true => state().captured.insert(stream),
        false => state().captured.remove(&stream),
    };
}

fn used_bytes(state: &State) -> u64 {
    state.allocations.values().map(|&len| len as u64).sum()
}

/// Writes a handle that nothing else has.
unsafe fn handle(to: *mut usize) -> u32 {
    let mut state = state();
    state.handles += 16;
    // SAFETY: the caller of the driver gives a place for it.
    unsafe { *to = state.handles };
    OK
}

macro_rules! driver {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $body:block)*) => {$(
        /// The driver's function of this name, as far as the library needs it.
        ///
        /// # Safety
        /// As the CUDA driver API documents it.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::too_many_arguments)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> u32 {
            count(Count::Calls);
            if let Some(code) = fault::of(stringify!($name)) { return code; }
            // SAFETY: the caller's promise: results are written to places that are there for them.
            #[allow(unused_unsafe, clippy::undocumented_unsafe_blocks)]
            unsafe { $body }
        }
    )*};
}

driver! {
    fn cuInit(_flags: c_uint) { OK }
    fn cuDriverGetVersion(version: *mut c_int) { *version = 13000; OK }
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) { *device = ordinal; OK }
    fn cuDeviceGetCount(n: *mut c_int) { *n = 1; OK }
    fn cuDeviceGetName(name: *mut c_char, len: c_int, _device: c_int) {
        let text = c"stand-in that computes nothing".to_bytes_with_nul();
        ptr::copy_nonoverlapping(text.as_ptr().cast(), name, text.len().min(len as usize));
        OK
    }
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, _device: c_int) {
        *value = match attribute {
            // Compute capability, multiprocessors, shared memory of a CTA.
            75 => 9,
            76 => 0,
            16 => 132,
            97 => 232_448,
            _ => 1,
        };
        OK
    }
    fn cuDevicePrimaryCtxRetain(context: *mut usize, _device: c_int) { *context = CONTEXT; OK }
    fn cuCtxGetCurrent(context: *mut usize) { *context = CONTEXT; OK }
    fn cuCtxSetCurrent(_context: usize) { OK }
    fn cuCtxPushCurrent_v2(_context: usize) { OK }
    fn cuCtxPopCurrent_v2(context: *mut usize) { *context = CONTEXT; OK }
    fn cuCtxSynchronize() {
        count(Count::Waits);
        if !state().captured.is_empty() {
            return CAPTURE_UNSUPPORTED;
        }
        state().order.finish_all();
        OK
    }
    fn cuGetErrorName(_code: u32, text: *mut *const c_char) {
        *text = c"CUDA_ERROR_OF_THE_STAND_IN".as_ptr();
        OK
    }
    fn cuGetErrorString(_code: u32, text: *mut *const c_char) {
        *text = c"an error of the stand-in".as_ptr();
        OK
    }

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        *total = MEMORY.load(Ordering::Relaxed) as usize;
        *free = (*total).saturating_sub(used_bytes(&state()) as usize);
        OK
    }
    fn cuMemAlloc_v2(address: *mut u64, len: usize) {
        count(Count::Allocations);
        forbidden_in_capture();
        let mut state = state();
        if used_bytes(&state) + len as u64 > MEMORY.load(Ordering::Relaxed) {
            return OUT_OF_MEMORY;
        }
        *address = alloc_zeroed(layout(len)).expose_provenance() as u64;
        state.allocations.insert(*address, len);
        OK
    }
    fn cuMemFree_v2(address: u64) {
        // It waits for the device.
        count(Count::Waits);
        free(address)
    }
    fn cuMemFreeAsync(address: u64, _stream: usize) { free(address) }
    fn cuMemHostAlloc(address: *mut *mut u8, len: usize, _flags: c_uint) {
        count(Count::Allocations);
        forbidden_in_capture();
        *address = alloc_zeroed(layout(len));
        state().pinned.insert((*address).addr(), len);
        OK
    }
    fn cuMemFreeHost(address: *mut u8) {
        count(Count::Waits);
        count(Count::Frees);
        match state().pinned.remove(&address.addr()) {
            Some(len) => dealloc(address, layout(len)),
            None => return INVALID_VALUE,
        }
        OK
    }
    fn cuMemcpyHtoD_v2(to: u64, from: *const u8, len: usize) {
        count(Count::Waits);
        ptr::copy_nonoverlapping(from, ptr::with_exposed_provenance_mut(to as usize), len);
        OK
    }
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const u8, len: usize, stream: usize) {
        count(Count::Copies);
        if SLOW_COPIES.load(Ordering::Relaxed) {
            state().busy.insert(stream);
        }
        let mut state = state();
        if !state.copied_to.insert(to) {
            count(Count::Repeated);
        }
        state.order.copy(stream);
        drop(state);
        ptr::copy_nonoverlapping(from, ptr::with_exposed_provenance_mut(to as usize), len);
        OK
    }
    fn cuMemcpyDtoH_v2(to: *mut u8, from: u64, len: usize) {
        count(Count::Waits);
        ptr::copy_nonoverlapping(ptr::with_exposed_provenance(from as usize), to, len);
        OK
    }
    fn cuMemcpyDtoHAsync_v2(to: *mut u8, from: u64, len: usize, _stream: usize) {
        count(Count::Copies);
        ptr::copy_nonoverlapping(ptr::with_exposed_provenance(from as usize), to, len);
        OK
    }
    fn cuMemsetD32Async(to: u64, word: c_uint, n: usize, _stream: usize) {
        fill(to, word as u8, n * 4)
    }
    fn cuMemsetD8Async(to: u64, byte: u8, n: usize, _stream: usize) { fill(to, byte, n) }
    fn cuMemGetAddressRange_v2(base: *mut u64, len: *mut usize, address: u64) {
        count(Count::Questions);
        let state = state();
        match state.allocations.range(..=address).next_back() {
            Some((&start, &size)) if address < start + size as u64 => {
                (*base, *len) = (start, size);
                OK
            }
            _ => INVALID_VALUE,
        }
    }
    fn cuPointerGetAttribute(to: *mut c_int, attribute: c_int, address: u64) {
        count(Count::Questions);
        let state = state();
        let pinned = state.pinned.range(..=address as usize).next_back();
        let is_pinned = pinned.is_some_and(|(start, len)| address < (start + len) as u64);
        match attribute {
            // The context: none, as of memory of a pool.
            1 => *to.cast::<usize>() = 0,
            2 => *to = if is_pinned { 1 } else { 2 },
            _ => *to = 0,
        }
        OK
    }

    fn cuStreamCreateWithPriority(stream: *mut usize, _flags: c_uint, _priority: c_int) {
        count(Count::Allocations);
        handle(stream)
    }
    fn cuStreamDestroy_v2(_stream: usize) { OK }
    fn cuStreamSynchronize(stream: usize) {
        count(Count::Waits);
        let mut state = state();
        let copies = state.order.of(stream);
        state.order.finish(&copies);
        OK
    }
    fn cuStreamWaitEvent(stream: usize, event: *mut Event, _flags: c_uint) {
        let mut state = state();
        if state.captured.contains(&stream) {
            count(Count::External);
        }
        state.order.wait(stream, &(*event).copies());
        OK
    }
    fn cuStreamGetCaptureInfo(stream: usize, status: *mut c_int, id: *mut u64) {
        *status = c_int::from(state().captured.contains(&stream));
        *id = 1;
        OK
    }
    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) {
        *mode = MODE.replace(*mode);
        OK
    }

    fn cuEventCreate(event: *mut *mut Event, _flags: c_uint) {
        count(Count::Allocations);
        *event = Event::create();
        OK
    }
    fn cuEventDestroy_v2(event: *mut Event) { drop(Box::from_raw(event)); OK }
    fn cuEventQuery(event: *mut Event) {
        forbidden_in_capture();
        if is_done(event) { OK } else { NOT_READY }
    }
    fn cuEventRecord(event: *mut Event, stream: usize) {
        if state().captured.contains(&stream) {
            count(Count::Captured);
        }
        record(event, stream)
    }
    fn cuEventRecordWithFlags(event: *mut Event, stream: usize, _flags: c_uint) {
        record(event, stream)
    }
    fn cuEventSynchronize(event: *mut Event) {
        count(Count::Waits);
        forbidden_in_capture();
        (*event).complete();
        state().order.finish(&(*event).copies());
        OK
    }

    fn cuModuleLoadData(module: *mut usize, _image: *const c_void) {
        count(Count::Loads);
        handle(module)
    }
    fn cuModuleLoadDataEx(
        module: *mut usize, _image: *const c_void, _n: c_uint, _options: *mut c_int,
        _values: *mut *mut c_void
    ) {
        count(Count::Loads);
        handle(module)
    }
    fn cuModuleGetFunction(function: *mut usize, _module: usize, name: *const c_char) {
        if CStr::from_ptr(name).is_empty() { INVALID_VALUE } else { handle(function) }
    }
    fn cuFuncSetAttribute(_function: usize, _attribute: c_int, _value: c_int) { OK }
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        n: *mut c_int, _function: usize, _threads: c_int, _shared_bytes: usize
    ) {
        *n = 1;
        OK
    }
    fn cuLaunchKernel(
        _function: usize, _x: c_uint, _y: c_uint, _z: c_uint, _block_x: c_uint, _block_y: c_uint,
        _block_z: c_uint, _shared_bytes: c_uint, stream: usize, _parameters: *mut *mut c_void,
        _extra: *mut *mut c_void
    ) { launch(stream) }
    fn cuLaunchKernelEx(
        config: *const LaunchConfig, _function: usize, _parameters: *mut *mut c_void,
        _extra: *mut *mut c_void
    ) { launch((*config).stream) }
    fn cuTensorMapEncodeTiled(
        map: *mut u8, _element: c_int, _rank: c_uint, _base: usize, _dims: *const u64,
        _strides: *const u64, _box: *const u32, _element_strides: *const u32, _interleave: c_int,
        _swizzle: c_int, _promotion: c_int, _fill: c_int
    ) {
        ptr::write_bytes(map, 1, 128);
        OK
    }
}

/// The start of `CUlaunchConfig`.
#[repr(C)]
pub struct LaunchConfig {
    sizes: [c_uint; 7],
    stream: usize,
}

fn launch(stream: usize) -> u32 {
    count(Count::Launches);
    let mut state = state();
    state.busy.insert(stream);
    if state.order.is_early(stream) {
        count(Count::Early);
    }
    drop(state);
    CLOCK.fetch_add(1, Ordering::Relaxed);
    OK
}
