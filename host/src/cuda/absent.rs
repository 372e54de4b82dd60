//! Stands in for the CUDA half in a build without it: the types that are named, without values. So
//! every arm is type-checked in both builds, and no arm can be reached in this one.

// These functions cannot be called, so they use no argument.
#![allow(unused_variables, clippy::extra_unused_type_parameters)]

mod calls;

use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

use maxsim_kernels::abi::element::Operand;
use maxsim_kernels::table::Resources;

use crate::error::{Error, Result};
use crate::plan::backward::BackwardKind;
use crate::plan::choice::Chosen;
use crate::plan::kernels::LoadedKernel;
use crate::plan::limits::{Access, DeviceLimits, ResidualAddresses};
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::problem::outputs::{GradientMatrix, OutputAddresses, OutputShape, Trust};
use crate::problem::scores::Scores;
use crate::residual::ResidualTokens;
use crate::runtime::arrival::Arrival;
use crate::tokens::Tokens;
use crate::tokens::element::{Element, ElementType};
use crate::tokens::format::{Format, Quantized, TokenFormat};
use crate::tokens::layout::TokenLayout;
use crate::tokens::raw_items::{RawItems, RawItemsOut};
use crate::tokens::scales::{ScaleType, Scales};

pub(crate) use calls::{
    BackwardCall, ChamferGradCall, Kept, ProjectionCall, Reduction, ResidualCall, ResidualFound,
    SearchCall, Selection, SliceCall, SlotsCall, StreamCall, StreamFound, StreamedRows, XtrCall,
    XtrFound,
};

/// No CUDA device can be opened.
pub(crate) fn open(ordinal: usize) -> Result<Arc<CudaDevice>> {
    Err(Error::CudaNotBuilt)
}

/// No driver can be asked.
pub(crate) fn n_devices() -> Result<usize> {
    Err(Error::CudaNotBuilt)
}

/// A type without values.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Never {}

/// Types without values. Functions of a value match on it; the others on a device that they get.
macro_rules! absent {
    ($($type:ident $({$($functions:tt)*})?)*) => {$(
        #[derive(Debug)]
        pub(crate) struct $type(pub(in crate::cuda) crate::cuda::Never);

        impl $type {
            $(absent!(@ $($functions)*);)?
        }
    )*};
    (@ fn $name:ident $(<$($generic:ident: $bound:path),*>)?
        (&self $(, $argument:ident: $of:ty)* $(,)?) $(-> $result:ty)?; $($rest:tt)*) => {
        pub(crate) fn $name $(<$($generic: $bound),*>)?
            (&self $(, $argument: $of)*) $(-> $result)?
        {
            match self.0 {}
        }
        absent!(@ $($rest)*);
    };
    (@ fn $name:ident $(<$($generic:ident: $bound:path),*>)?
        ($by:ident: $first:ty $(, $argument:ident: $of:ty)* $(,)?) -> $result:ty; $($rest:tt)*) => {
        pub(crate) fn $name $(<$($generic: $bound),*>)?
            ($by: $first $(, $argument: $of)*) -> $result
        {
            match $by.0 {}
        }
        absent!(@ $($rest)*);
    };
    (@ unsafe fn $name:ident($by:ident: $first:ty $(, $argument:ident: $of:ty)* $(,)?)
        -> $result:ty; $($rest:tt)*) => {
        /// # Safety
        /// It cannot be called.
        #[allow(unsafe_code)]
        pub(crate) unsafe fn $name($by: $first $(, $argument: $of)*) -> $result {
            match $by.0 {}
        }
        absent!(@ $($rest)*);
    };
    (@) => {};
}

type Device<'a> = &'a Arc<CudaDevice>;

#[path = "chamfer/absent.rs"]
mod chamfer;
pub(crate) use chamfer::{CudaChamfer, CudaChamferWork};

#[path = "backward/absent.rs"]
mod backward;
pub(crate) use backward::{CudaProjectedBackward, CudaProjectionSums, CudaSlices};

#[path = "search/absent.rs"]
mod search;
pub(crate) use search::{CudaSearch, CudaTerms};

#[path = "top_k/absent.rs"]
mod top_k;
pub(crate) use top_k::{CudaTopK, CudaTopKWork};

absent! {
    CudaDevice {
        fn ordinal(&self) -> usize;
        fn name(&self) -> &str;
        fn limits(&self) -> &DeviceLimits;
        fn driver_version(&self) -> u32;
        fn memory_bytes(&self) -> Result<(u64, u64)>;
        fn warm_up(&self, kernels: &[Resources]) -> Result<Vec<LoadedKernel>>;
        fn score(
            &self,
            problem: &Problem<'_>,
            chosen: Chosen,
            queries: &CudaTokens,
            documents: &CudaTokens,
            options: &ScoreOptions,
        ) -> Result<(Scores, CudaOutputs)>;
        fn residual_gradients(
            &self,
            problem: &Problem<'_>,
            element: ElementType,
            shape: &OutputShape,
            call: &ResidualCall<'_>,
            found: ResidualFound<'_>,
        ) -> Result<()>;
        fn search_stream(&self, call: &StreamCall<'_>) -> Result<StreamFound>;
        fn xtr(&self, call: &XtrCall<'_, ForwardPlan>) -> Result<XtrFound>;
    }
    CudaStream {
        fn new(device: Device<'_>) -> Result<CudaStream>;
        unsafe fn from_raw(device: Device<'_>, raw: *mut c_void) -> CudaStream;
        fn raw(&self) -> *mut c_void;
        fn synchronize(&self) -> Result<()>;
    }
    CudaEvent {
        fn timing(device: Device<'_>) -> Result<CudaEvent>;
        fn record_on(&self, stream: &CudaStream) -> Result<()>;
        fn elapsed_ms(&self, start: &CudaEvent) -> Result<f32>;
    }
    Pinned {
        fn new(device: Device<'_>, len_bytes: usize) -> Result<Pinned>;
        fn as_slice(&self) -> &[u8];
    }
    CudaTokens {
        fn upload<F: Format>(
            device: Device<'_>,
            tokens: &Tokens<'_, F>,
            arrival: Arrival,
        ) -> Result<CudaTokens>;
        fn upload_residual<T: Element>(device: Device<'_>, tokens: &ResidualTokens<'_>)
            -> Result<CudaTokens>;
        fn view_residual(
            device: Device<'_>,
            queries: ElementType,
            layout: &TokenLayout,
            addresses: ResidualAddresses,
            tables: (u32, usize),
            beside: [u64; 2],
        ) -> Result<CudaTokens>;
        fn view(
            device: Device<'_>,
            operand: impl Into<Operand>,
            layout: &TokenLayout,
            access: Access,
            beside: [u64; 3],
        ) -> Result<CudaTokens>;
        fn download<F: Format>(&self, device: Device<'_>, layout: &TokenLayout)
            -> Result<Tokens<'static, F>>;
        fn quantize<T: Element, F: Quantized>(&self, device: Device<'_>, layout: &TokenLayout,
            scales: ScaleType) -> Result<CudaTokens>;
        fn project(self: &Arc<CudaTokens>, device: Device<'_>, call: &ProjectionCall<'_>)
            -> Result<CudaTokens>;
        fn check_normalizable(&self, device: Device<'_>, layout: &TokenLayout) -> Result<()>;
        fn gathered(&self, device: Device<'_>, rows: &[u32], element: ElementType)
            -> Result<CudaTokens>;
        fn read_mask(&self, device: Device<'_>) -> Result<Option<Vec<u8>>>;
        fn of_segments(
            self: &Arc<CudaTokens>,
            device: Device<'_>,
            layout: &TokenLayout,
            segments: u64,
        ) -> Result<CudaTokens>;
        fn of_items(
            self: &Arc<CudaTokens>,
            device: Device<'_>,
            layout: &TokenLayout,
            segments: &[[u32; 2]],
        ) -> Result<CudaTokens>;
        fn is_masked(&self) -> bool;
        fn set_scales(&self, scales: RowScales);
        fn set_scale_words(&self, address: u64, format: TokenFormat);
        fn access(&self) -> Access;
        fn n_table_rows(&self) -> [usize; 2];
    }
    RowScales {
        fn of_scales(
            device: Device<'_>,
            scales: &Scales<'_>,
            operand: Operand,
            layout: &TokenLayout,
            arrival: Arrival,
        ) -> Result<RowScales>;
    }
    CudaOutputs {
        fn new(device: Device<'_>, shape: &OutputShape) -> Result<CudaOutputs>;
        fn of_winners(device: Device<'_>, shape: &OutputShape, winners: &[i32])
            -> Result<CudaOutputs>;
        unsafe fn from_raw_parts(
            device: Device<'_>,
            shape: &OutputShape,
            addresses: OutputAddresses,
            trust: Trust,
        ) -> Result<CudaOutputs>;
        fn device(&self) -> &Arc<CudaDevice>;
        fn addresses(&self) -> OutputAddresses;
        fn read(&self, shape: &OutputShape) -> Result<Scores>;
        fn unfilled(device: Device<'_>, shape: &OutputShape) -> Result<CudaOutputs>;
        fn read_scores(&self, stream: &mut CudaStream, scores: Range<usize>) -> Result<Vec<f32>>;
    }
    CudaGradScores {
        fn upload(device: Device<'_>, values: &[f32]) -> Result<CudaGradScores>;
        unsafe fn from_raw_parts(device: Device<'_>, address: u64, n: usize, trust: Trust)
            -> Result<CudaGradScores>;
        fn address(&self) -> u64;
        fn read(&self, values: &mut [f32]) -> Result<()>;
        fn write(&self, values: &[f32]) -> Result<()>;
    }
    CudaGradients {
        fn zeros(device: Device<'_>, parts: [GradientMatrix; 3]) -> Result<CudaGradients>;
        unsafe fn from_raw_parts(
            device: Device<'_>,
            parts: [GradientMatrix; 3],
            trust: Trust,
        ) -> Result<CudaGradients>;
        fn parts(&self) -> [GradientMatrix; 3];
        fn read(&self, parts: [&mut [f32]; 3]) -> Result<()>;
        fn write(&self, part: usize, values: &[f32]) -> Result<()>;
    }
    ForwardPlan {
        fn workspace_bytes(&self) -> u64;
        fn list_bytes(&self) -> u64;
        fn new(
            device: Device<'_>,
            problem: &Problem<'_>,
            chosen: Chosen,
            outputs: &OutputShape,
        ) -> Result<ForwardPlan>;
        fn prepare_row_scales(
            &self,
            queries: &CudaTokens,
            documents: &CudaTokens,
            order: Option<Never>,
        ) -> Result<()>;
        fn enqueue(
            &self,
            stream: &mut CudaStream,
            queries: &CudaTokens,
            documents: &CudaTokens,
            outputs: &CudaOutputs,
        ) -> Result<()>;
    }
    CudaRescore {
        fn new(
            device: Device<'_>,
            problem: &Problem<'_>,
            element: ElementType,
            coarse_scores: &Arc<ForwardPlan>,
            outputs: &OutputShape,
        ) -> Result<CudaRescore>;
        fn enqueue(
            &self,
            stream: &mut CudaStream,
            codes: [&Arc<CudaTokens>; 2],
            tokens: [&Arc<CudaTokens>; 2],
            outputs: &CudaOutputs,
        ) -> Result<()>;
    }
    CudaBackward {
        fn workspace_bytes(&self, adds: bool) -> u64;
        fn new(
            device: Device<'_>,
            problem: &Problem<'_>,
            element: ElementType,
            kind: BackwardKind,
            outputs: &OutputShape,
        ) -> Result<CudaBackward>;
        fn recompute(
            device: Device<'_>,
            problem: &Problem<'_>,
            element: ElementType,
            kind: BackwardKind,
            outputs: &OutputShape,
            again: (Chosen, u64),
        ) -> Result<CudaBackward>;
        fn enqueue(&self, stream: &mut CudaStream, call: &BackwardCall<'_>) -> Result<()>;
    }
    CudaTargets {
        fn positives(device: Device<'_>, positives: &[usize]) -> Result<CudaTargets>;
        fn teacher(device: Device<'_>, scores: &[f32]) -> Result<CudaTargets>;
        fn scores(outputs: &Arc<CudaOutputs>) -> CudaTargets;
    }
    CudaLossWork {
        fn new(
            device: Device<'_>,
            shape: [usize; 2],
            temperature: f32,
            targets: CudaTargets,
        ) -> Result<CudaLossWork>;
        fn write_teacher(&self, scores: &[f32]) -> Result<bool>;
        fn enqueue(
            &self,
            stream: &mut CudaStream,
            outputs: &CudaOutputs,
            grad_scores: &CudaGradScores,
            loss: &CudaLoss,
        ) -> Result<()>;
    }
    CudaLoss {
        fn new(device: Device<'_>, n_queries: usize) -> Result<CudaLoss>;
        fn address(&self) -> u64;
        fn read(&self) -> Result<f32>;
    }
    CudaCall {
        fn top_k(
            work: &Arc<CudaTopKWork>,
            outputs: &Arc<CudaOutputs>,
            best: &Arc<CudaTopK>,
            call: Selection,
        ) -> CudaCall;
        fn chamfer(
            work: &Arc<CudaChamferWork>,
            tokens: [&Arc<CudaTokens>; 2],
            found: &Arc<CudaChamfer>,
            backward: Option<(ChamferGradCall<'_>, &Arc<CudaGradients>)>,
        ) -> CudaCall;
        fn merge_top_k(other: &Arc<CudaTopK>, best: &Arc<CudaTopK>) -> Result<CudaCall>;
        fn new(
            work: &Arc<ForwardPlan>,
            queries: &Arc<CudaTokens>,
            documents: &Arc<CudaTokens>,
            outputs: &Arc<CudaOutputs>,
        ) -> Result<CudaCall>;
        fn rescore(
            work: &Arc<CudaRescore>,
            codes: [Arc<CudaTokens>; 2],
            tokens: [Arc<CudaTokens>; 2],
            outputs: &Arc<CudaOutputs>,
        ) -> Result<CudaCall>;
        fn loss(
            work: &Arc<CudaLossWork>,
            outputs: &Arc<CudaOutputs>,
            grad_scores: &Arc<CudaGradScores>,
            loss: &Arc<CudaLoss>,
        ) -> CudaCall;
        fn backward(
            work: &Arc<CudaBackward>,
            tokens: [&Arc<CudaTokens>; 2],
            outputs: &Arc<CudaOutputs>,
            grad_scores: &Arc<CudaGradScores>,
            gradients: &Arc<CudaGradients>,
            adds: bool,
        ) -> Result<CudaCall>;
    }
    CudaGraph {
        fn new(device: Device<'_>, calls: Vec<CudaCall>) -> Result<CudaGraph>;
        fn launch(&self, stream: &CudaStream) -> Result<()>;
    }
}

impl CudaStream {
    /// # Safety
    /// It cannot be called.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn set_workspace(&mut self, address: u64, len_bytes: u64) -> Result<()> {
        match self.0 {}
    }

    /// # Safety
    /// It cannot be called.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn lend_workspace(
        &mut self,
        address: u64,
        len_bytes: u64,
    ) -> Result<Option<Never>> {
        match self.0 {}
    }
    pub(crate) fn restore_workspace(&mut self, before: Option<Never>) {
        match self.0 {}
    }
    pub(crate) fn workspace_bytes(&self) -> u64 {
        match self.0 {}
    }
    pub(crate) fn is_captured(&self) -> Result<bool> {
        match self.0 {}
    }
}

impl CudaTokens {
    /// # Safety
    /// It cannot be called.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn quantize_into<T: Element>(
        &self,
        stream: &mut CudaStream,
        format: TokenFormat,
        scales: ScaleType,
        to: [u64; 2],
    ) -> Result<()> {
        match self.0 {}
    }

    /// # Safety
    /// It cannot be called.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn write_residual_norms(
        &self,
        stream: &mut CudaStream,
        queries: ElementType,
        dim: usize,
    ) -> Result<()> {
        match self.0 {}
    }
}

impl Pinned {
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        match self.0 {}
    }
}

impl CudaDevice {
    pub(crate) fn on_idle_stream<R>(
        &self,
        call: impl FnOnce(&mut CudaStream) -> Result<R>,
    ) -> Result<R> {
        match self.0 {}
    }
}

pub(crate) fn read(
    stream: &mut CudaStream,
    tokens: &CudaTokens,
    row_bytes: usize,
    blocks_per_multiprocessor: usize,
) -> Result<()> {
    match stream.0 {}
}

/// # Safety
/// It cannot be called.
#[allow(unsafe_code)]
pub(crate) unsafe fn write_segments(
    stream: &mut CudaStream,
    items: &RawItems,
    out: RawItemsOut,
) -> Result<()> {
    match stream.0 {}
}
pub(crate) fn check_range(
    device: &CudaDevice,
    address: u64,
    len_bytes: u64,
    align_bytes: u64,
) -> Result<()> {
    match device.0 {}
}
pub(crate) fn read_rows<V: bytemuck::Pod>(
    device: Device<'_>,
    address: u64,
    rows: usize,
) -> Result<Vec<V>> {
    match device.0 {}
}
