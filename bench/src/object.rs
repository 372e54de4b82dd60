//! What handles of the C interface refer to.

use std::ffi::CString;

use half::{bf16, f16};
use maxsim::format::{Element, Fp8, Int8, Int8Affine, RawRows, Residual};
use maxsim::plan::Plan;
use maxsim::search::{CoarseCodes, PreparedRescore};
use maxsim::stream::{DeviceScores, PreparedScore, Queue, Stream};
use maxsim::training::{DeviceGradScores, DeviceGradients, PreparedBackward};
use maxsim::{Device, DeviceTokens, Pairing, ScoreOptions, TokenLayout};

use crate::codes::{Codes, host_tokens};

/// Errors of the interface are texts: its callers only show them.
pub(crate) type Result<T> = std::result::Result<T, String>;

/// Whatever a handle refers to. One type, so that a wrong handle is an error with a name.
pub enum Object {
    /// A device, and what it is as JSON.
    Device(Device, CString),
    /// Tokens of any format.
    Tokens(AnyTokens),
    /// Compressed tokens in host memory.
    Codes(Codes),
    /// A prepared problem, and its plan as text.
    Work(AnyWork, CString),
    /// Results of a work.
    Outputs(Outputs),
    /// A stream.
    Stream(Stream),
    /// Gradients of a prepared problem, made ready.
    Backward(PreparedBackward),
    /// Gradients of scores, and of tokens.
    Gradients(DeviceGradScores, DeviceGradients),
}

impl Object {
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Object::Device(..) => "a device",
            Object::Tokens(_) => "tokens",
            Object::Codes(_) => "codes",
            Object::Work(AnyWork::Plain(_), _) => "a work",
            Object::Work(AnyWork::Coarse(_), _) => "a coarse-to-fine work",
            Object::Outputs(_) => "outputs",
            Object::Stream(_) => "a stream",
            Object::Backward(_) => "a gradient's work",
            Object::Gradients(..) => "gradients",
        }
    }
}

/// Tokens of any format on a device.
pub enum AnyTokens {
    /// Half precision.
    F16(DeviceTokens<f16>),
    /// bfloat16.
    Bf16(DeviceTokens<bf16>),
    /// Single precision.
    F32(DeviceTokens<f32>),
    /// Signed whole numbers.
    Int8(DeviceTokens<Int8>),
    /// Whole numbers with a minimum.
    Int8Affine(DeviceTokens<Int8Affine>),
    /// Eight-bit floating point numbers.
    Fp8(DeviceTokens<Fp8>),
    /// Residuals, for half precision queries.
    ResidualF16(DeviceTokens<Residual<f16>>),
    /// Residuals, for bfloat16 queries.
    ResidualBf16(DeviceTokens<Residual<bf16>>),
    /// Residuals, for single precision queries.
    ResidualF32(DeviceTokens<Residual<f32>>),
    /// Half precision, with the codes that find winners.
    Screened(DeviceTokens<f16>, DeviceTokens<Int8>),
}

/// A prepared problem.
pub enum AnyWork {
    /// Of tokens of one matrix.
    Plain(PreparedScore),
    /// Of tokens with the codes that find winners.
    Coarse(PreparedRescore),
}

impl AnyWork {
    pub(crate) fn plan(&self) -> &Plan {
        match self {
            AnyWork::Plain(work) => work.plan(),
            AnyWork::Coarse(work) => work.plan(),
        }
    }
}

/// Runs code with tokens of whatever format.
macro_rules! with_tokens {
    ($tokens:expr, $name:ident => $code:expr) => {
        match $tokens {
            $crate::object::AnyTokens::F16($name) => $code,
            $crate::object::AnyTokens::Bf16($name) => $code,
            $crate::object::AnyTokens::F32($name) => $code,
            $crate::object::AnyTokens::Int8($name) => $code,
            $crate::object::AnyTokens::Int8Affine($name) => $code,
            $crate::object::AnyTokens::Fp8($name) => $code,
            $crate::object::AnyTokens::ResidualF16($name) => $code,
            $crate::object::AnyTokens::ResidualBf16($name) => $code,
            $crate::object::AnyTokens::ResidualF32($name) => $code,
            $crate::object::AnyTokens::Screened($name, _) => $code,
        }
    };
}
pub(crate) use with_tokens;

/// Runs code with queries and documents of formats that go together.
macro_rules! with_both {
    ($queries:expr, $documents:expr, ($q:ident, $d:ident) => $code:expr) => {
        match ($queries, $documents) {
            (AnyTokens::F16($q), AnyTokens::F16($d)) => $code,
            (AnyTokens::Bf16($q), AnyTokens::Bf16($d)) => $code,
            (AnyTokens::F32($q), AnyTokens::F32($d)) => $code,
            (AnyTokens::Int8($q), AnyTokens::Int8($d)) => $code,
            (AnyTokens::Fp8($q), AnyTokens::Fp8($d)) => $code,
            (AnyTokens::F16($q), AnyTokens::Int8Affine($d)) => $code,
            (AnyTokens::Bf16($q), AnyTokens::Int8Affine($d)) => $code,
            (AnyTokens::Int8($q), AnyTokens::Int8Affine($d)) => $code,
            (AnyTokens::F16($q), AnyTokens::ResidualF16($d)) => $code,
            (AnyTokens::Bf16($q), AnyTokens::ResidualBf16($d)) => $code,
            (AnyTokens::F32($q), AnyTokens::ResidualF32($d)) => $code,
            _ => Err("queries and documents have formats that do not go together".to_string()),
        }
    };
}

/// Runs code with queries and documents of the same element type.
macro_rules! with_elements {
    ($queries:expr, $documents:expr, ($q:ident, $d:ident) => $code:expr) => {
        match ($queries, $documents) {
            (AnyTokens::F16($q), AnyTokens::F16($d)) => $code,
            (AnyTokens::Bf16($q), AnyTokens::Bf16($d)) => $code,
            (AnyTokens::F32($q), AnyTokens::F32($d)) => $code,
            _ => Err("queries and documents are not of one element type".to_string()),
        }
    };
}

/// What [`AnyTokens::at`] needs to know of tokens in memory.
pub(crate) struct Place<'a> {
    pub element: &'a str,
    pub address: u64,
    pub layout: TokenLayout,
    /// Address of the mask, 0 = none.
    pub mask: u64,
}

impl AnyTokens {
    /// Tokens at an address, without a copy (on the CPU, where addresses are the host's, with
    /// one).
    ///
    /// # Safety
    /// As for [`DeviceTokens::from_raw_parts`]; on the CPU the memory must be readable.
    pub(crate) unsafe fn at(device: &Device, place: Place<'_>) -> Result<AnyTokens> {
        // SAFETY: the caller's promise.
        unsafe {
            match place.element {
                "f16" => Ok(AnyTokens::F16(typed(device, place)?)),
                "bf16" => Ok(AnyTokens::Bf16(typed(device, place)?)),
                "f32" => Ok(AnyTokens::F32(typed(device, place)?)),
                other => Err(format!("element {other}: expected f16, bf16 or f32")),
            }
        }
    }

    /// Half precision tokens as [`AnyTokens::at`] has them, and codes of the same tokens, which are
    /// uploaded.
    ///
    /// # Safety
    /// As [`AnyTokens::at`].
    pub(crate) unsafe fn screened(
        device: &Device,
        place: Place<'_>,
        codes: &Codes,
    ) -> Result<AnyTokens> {
        // SAFETY: the caller's promise.
        match (unsafe { AnyTokens::at(device, place)? }, codes.upload(device)?) {
            (AnyTokens::F16(tokens), AnyTokens::Int8(codes)) => {
                Ok(AnyTokens::Screened(tokens, codes))
            }
            _ => Err("expected f16 tokens and int8 codes, which find their winners".to_string()),
        }
    }

    pub(crate) fn prepare(
        &self,
        documents: &AnyTokens,
        candidates: usize,
        options: &ScoreOptions,
    ) -> Result<AnyWork> {
        let pairing = match candidates {
            0 => Pairing::cross(),
            k => Pairing::own_candidates(k),
        };
        if let (AnyTokens::Screened(q, q_codes), AnyTokens::Screened(d, d_codes)) =
            (self, documents)
        {
            let screen = CoarseCodes::new(q_codes, d_codes).assumed();
            let work = q.device().prepare_rescore(q, d, &screen, &pairing, options);
            return Ok(AnyWork::Coarse(work.map_err(text)?));
        }
        let work: Result<PreparedScore> = with_both!(self, documents, (q, d) => {
            q.device().prepare(q, d, &pairing, options).map_err(text)
        });
        Ok(AnyWork::Plain(work?))
    }
}

/// # Safety
/// As [`AnyTokens::at`].
unsafe fn typed<T: Element>(device: &Device, place: Place<'_>) -> Result<DeviceTokens<T>> {
    if device.ordinal().is_some() {
        let Place { address, layout, mask, .. } = place;
        let pitch_bytes = (layout.dim() * size_of::<T>()) as u64;
        let mask = (mask != 0).then_some(mask);
        // SAFETY: the caller's promise.
        let tokens = unsafe {
            DeviceTokens::from_raw_parts(
                device,
                RawRows::new(address, pitch_bytes).mask(mask),
                layout,
            )
        };
        return tokens.map_err(text);
    }
    // SAFETY: the caller's promise.
    let tokens = unsafe { host_tokens::<T>(place)? };
    device.upload(&tokens).map_err(text)
}

/// # Safety
/// `n` values of the type must be readable at the address, unless it is refused.
pub(crate) unsafe fn host_slice<'a, V>(address: u64, n: usize) -> Result<&'a [V]> {
    if n == 0 {
        return Ok(&[]);
    }
    let pointer: *const V = std::ptr::with_exposed_provenance(address as usize);
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(format!("host address {address:#x} is null or not aligned"));
    }
    // SAFETY: the caller's promise; not null and aligned, as just checked.
    Ok(unsafe { std::slice::from_raw_parts(pointer, n) })
}

/// Copies values to a host address; nowhere for 0.
///
/// # Safety
/// As many values must be writable at the address.
pub(crate) unsafe fn copy_to<V: Copy>(address: u64, values: &[V]) -> Result<()> {
    if address == 0 || values.is_empty() {
        return Ok(());
    }
    let to: *mut V = std::ptr::with_exposed_provenance_mut(address as usize);
    if !to.is_aligned() {
        return Err(format!("host address {address:#x} is not aligned"));
    }
    // SAFETY: the caller's promise; not null and aligned, as just checked.
    unsafe { std::ptr::copy(values.as_ptr(), to, values.len()) };
    Ok(())
}

/// Results at an address; on the CPU, copied there after each call. Those of a coarse-to-fine work
/// have memory of their own, since winners are among them, asked for or not.
pub struct Outputs {
    pub(crate) scores: DeviceScores,
    copy_to: Option<u64>,
}

impl Outputs {
    /// # Safety
    /// As for [`DeviceScores::from_raw_parts`]; on the CPU the scores' memory must be writable.
    pub(crate) unsafe fn at(
        work: &AnyWork,
        scores: u64,
        winners: u64,
        token_scores: u64,
    ) -> Result<Outputs> {
        let work = match work {
            AnyWork::Plain(work) => work,
            AnyWork::Coarse(work) => {
                if [scores, winners, token_scores] != [0; 3] {
                    return Err("coarse-to-fine results have memory of their own: give the \
                                address 0, and read them with maxsim_bench_scores"
                        .to_string());
                }
                return Ok(Outputs { scores: work.new_scores().map_err(text)?, copy_to: None });
            }
        };
        if work.device().ordinal().is_none() {
            let copy_to = Some(scores);
            return Ok(Outputs { scores: work.new_scores().map_err(text)?, copy_to });
        }
        let given = |address: u64| (address != 0).then_some(address);
        // SAFETY: the caller's promise.
        let scores = unsafe {
            DeviceScores::from_raw_parts(work, scores, given(winners), given(token_scores))
        };
        Ok(Outputs { scores: scores.map_err(text)?, copy_to: None })
    }

    /// Brings results of the CPU to where they are wanted.
    fn settle(&self) -> Result<()> {
        let Some(address) = self.copy_to else { return Ok(()) };
        // SAFETY: the promise made to `Outputs::at`.
        unsafe { self.read(address) }
    }

    /// Waits for the last call and copies its scores to a host address.
    ///
    /// # Safety
    /// The memory must be writable.
    pub(crate) unsafe fn read(&self, to: u64) -> Result<()> {
        let scores = self.scores.read().map_err(text)?;
        // SAFETY: the caller's promise.
        unsafe { copy_to(to, scores.values()) }
    }
}

/// Enqueues a prepared call.
pub(crate) fn enqueue(
    stream: &mut Stream,
    queries: &AnyTokens,
    documents: &AnyTokens,
    work: &AnyWork,
    outputs: &mut Outputs,
) -> Result<()> {
    let scores = &mut outputs.scores;
    match (work, queries, documents) {
        (AnyWork::Plain(work), _, _) => with_both!(queries, documents, (q, d) => {
            stream.score_into(q, d, work, scores).map_err(text)
        })?,
        (
            AnyWork::Coarse(work),
            AnyTokens::Screened(q, q_codes),
            AnyTokens::Screened(d, d_codes),
        ) => {
            let screen = CoarseCodes::new(q_codes, d_codes).assumed();
            stream.rescore_into(q, d, &screen, work, scores).map_err(text)?;
        }
        _ => return Err("the work is one of tokens with codes that find winners".to_string()),
    }
    outputs.settle()
}

/// Enqueues the gradients of a call that has been enqueued.
pub(crate) fn enqueue_backward(
    stream: &mut Stream,
    queries: &AnyTokens,
    documents: &AnyTokens,
    work: &PreparedBackward,
    outputs: &Outputs,
    grad_scores: &DeviceGradScores,
    gradients: &mut DeviceGradients,
) -> Result<()> {
    with_elements!(queries, documents, (q, d) => {
        stream.backward(q, d, work, outputs.scores.with_grad(grad_scores), gradients).map_err(text)
    })
}

/// An error with the causes behind it.
pub(crate) fn text(error: maxsim::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}
