//! Objects that handles of the C interface refer to.

use std::ffi::CString;

use half::f16;
use maxsim::format::{AnyDeviceTokens, Element, ElementType, Int8, RawRows, with_element};
use maxsim::plan::Plan;
use maxsim::search::{CoarseCodes, PreparedRescore};
use maxsim::stream::{DeviceScores, PreparedScore, Queue, Stream};
use maxsim::streaming::PageLocked;
use maxsim::training::{DeviceGradScores, DeviceGradients, PreparedBackward};
use maxsim::{Device, DeviceTokens, Devices, Pairing, ScoreOptions, TokenLayout};

use crate::codes::{Codes, element_type, host_tokens};
use crate::ffi::{ChamferStep, Corpus, HostResiduals, Selection, Sharded, WholeCall};

/// Errors of the interface are texts: its callers only show them.
pub(crate) type Result<T> = std::result::Result<T, String>;

/// Any object that a handle refers to. One type, so that a wrong handle is an error with a name.
pub enum Object {
    /// A device, and what it is as JSON.
    Device(Device, CString),
    /// Several devices that search as one.
    Devices(Devices),
    /// Documents on such devices.
    Sharded(Sharded),
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
    /// A selection of the best documents of each query.
    Selection(Selection),
    /// Documents that are searched by way of codes.
    Corpus(Corpus),
    /// Memory of the host that is not paged out.
    PageLocked(PageLocked<f16>),
    /// Residual-compressed tokens that stay on the host.
    HostResiduals(HostResiduals),
    /// Gradients of scores, and of tokens.
    Gradients(DeviceGradScores, DeviceGradients),
    /// Chamfer distances made ready, and their gradients.
    Chamfer(Box<ChamferStep>),
    /// A call that waits for its results.
    Whole(WholeCall),
}

impl Object {
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Object::Device(..) => "a device",
            Object::Devices(_) => "devices",
            Object::Sharded(_) => "shards",
            Object::Tokens(_) => "tokens",
            Object::Codes(_) => "codes",
            Object::Work(AnyWork::Plain(_), _) => "a work",
            Object::Work(AnyWork::Coarse(_), _) => "a coarse-to-fine work",
            Object::Outputs(_) => "outputs",
            Object::Stream(_) => "a stream",
            Object::Backward(_) => "a gradient's work",
            Object::Selection(_) => "a selection",
            Object::Corpus(_) => "a corpus",
            Object::PageLocked(_) => "page-locked memory",
            Object::HostResiduals(_) => "residual tokens of host memory",
            Object::Gradients(..) => "gradients",
            Object::Chamfer(_) => "a step of Chamfer distances",
            Object::Whole(_) => "a call that waits",
        }
    }
}

/// Tokens of any format on a device.
pub struct AnyTokens {
    pub(crate) tokens: AnyDeviceTokens,
    /// The codes that find winners of half precision tokens.
    codes: Option<DeviceTokens<Int8>>,
}

impl From<AnyDeviceTokens> for AnyTokens {
    fn from(tokens: AnyDeviceTokens) -> AnyTokens {
        AnyTokens { tokens, codes: None }
    }
}

/// A prepared problem.
pub enum AnyWork {
    /// Work on tokens of one matrix.
    Plain(Box<PreparedScore>),
    /// Work on tokens with the codes that find winners.
    Coarse(Box<PreparedRescore>),
}

impl AnyWork {
    pub(crate) fn plan(&self) -> &Plan {
        match self {
            AnyWork::Plain(work) => work.plan(),
            AnyWork::Coarse(work) => work.plan(),
        }
    }
}

/// Description of tokens in memory for [`AnyTokens::at`].
pub(crate) struct Place<'a> {
    pub element: &'a str,
    pub address: u64,
    pub layout: TokenLayout,
    /// Address of the mask, 0 = none.
    pub mask: u64,
    /// Address of an f32 per row, the weights of query tokens; 0 = none.
    pub weights: u64,
}

impl AnyTokens {
    /// Tokens at an address, without a copy (on the CPU, where addresses are the host's, with
    /// one).
    ///
    /// # Safety
    /// As for [`DeviceTokens::from_raw_parts`]; on the CPU the memory must be readable.
    pub(crate) unsafe fn at(device: &Device, place: Place<'_>) -> Result<AnyTokens> {
        // SAFETY: the caller's promise.
        let tokens: AnyDeviceTokens = with_element!(element_type(place.element)?, T => unsafe {
            typed::<T>(device, place)?.into()
        });
        Ok(tokens.into())
    }

    /// Tokens as [`AnyTokens::at`] has them, and codes of the same tokens, which are uploaded.
    ///
    /// # Safety
    /// As [`AnyTokens::at`].
    pub(crate) unsafe fn screened(
        device: &Device,
        place: Place<'_>,
        codes: &Codes,
    ) -> Result<AnyTokens> {
        // SAFETY: the caller's promise.
        match (unsafe { AnyTokens::at(device, place)? }.tokens, codes.upload(device)?) {
            (tokens, AnyDeviceTokens::Int8(codes)) => Ok(AnyTokens { tokens, codes: Some(codes) }),
            _ => Err("expected tokens and int8 codes, which find their winners".to_string()),
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
        let device = self.tokens.device();
        if let Some((element, coarse)) = screened(self, documents) {
            let work = with_element!(element, T => {
                let (q, d) = typed_pair::<T>(self, documents)?;
                device.prepare_rescore(q, d, &coarse, &pairing, options)
            });
            return Ok(AnyWork::Coarse(work.map_err(text)?.into()));
        }
        check_plain(self, documents)?;
        let work = device.prepare_any(&self.tokens, &documents.tokens, &pairing, options);
        Ok(AnyWork::Plain(work.map_err(text)?.into()))
    }
}

/// Checks that neither side has codes that find winners.
fn check_plain(queries: &AnyTokens, documents: &AnyTokens) -> Result<()> {
    if queries.codes.is_some() || documents.codes.is_some() {
        return Err("queries and documents have formats that do not go together".to_string());
    }
    Ok(())
}

/// The codes of both sides and the element type of their queries, where both have codes.
fn screened<'a>(
    queries: &'a AnyTokens,
    documents: &'a AnyTokens,
) -> Option<(ElementType, CoarseCodes<'a>)> {
    let codes = (queries.codes.as_ref()?, documents.codes.as_ref()?);
    let element = queries.tokens.format().element()?;
    Some((element, CoarseCodes::new(codes.0, codes.1).assumed()))
}

/// Tokens of both sides, of one element type.
fn typed_pair<'a, T: Element>(
    queries: &'a AnyTokens,
    documents: &'a AnyTokens,
) -> Result<(&'a DeviceTokens<T>, &'a DeviceTokens<T>)>
where
    AnyDeviceTokens: From<DeviceTokens<T>>,
{
    let none = || "queries and documents are not of one element type".to_string();
    let queries = queries.tokens.typed::<T>().ok_or_else(none)?;
    Ok((queries, documents.tokens.typed::<T>().ok_or_else(none)?))
}

/// # Safety
/// As [`AnyTokens::at`].
unsafe fn typed<T: Element>(device: &Device, place: Place<'_>) -> Result<DeviceTokens<T>> {
    if device.ordinal().is_some() {
        let Place { address, layout, mask, weights, .. } = place;
        let pitch_bytes = (layout.dim() * size_of::<T>()) as u64;
        let [mask, weights] = [mask, weights].map(|address| (address != 0).then_some(address));
        // SAFETY: the caller's promise.
        let tokens = unsafe {
            DeviceTokens::from_raw_parts(
                device,
                RawRows::new(address, pitch_bytes).mask(mask).weights(weights),
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
    match (work, screened(queries, documents)) {
        (AnyWork::Plain(work), _) => {
            check_plain(queries, documents)?;
            let (queries, documents) = (&queries.tokens, &documents.tokens);
            stream.score_any_into(queries, documents, work, scores).map_err(text)?;
        }
        (AnyWork::Coarse(work), Some((element, coarse))) => with_element!(element, T => {
            let (q, d) = typed_pair::<T>(queries, documents)?;
            stream.rescore_into(q, d, &coarse, work, scores).map_err(text)?;
        }),
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
    check_plain(queries, documents)?;
    let element = queries.tokens.format().element();
    let element = element.ok_or_else(|| "queries are codes".to_string())?;
    with_element!(element, T => {
        let (queries, documents) = typed_pair::<T>(queries, documents)?;
        let scores = outputs.scores.with_grad(grad_scores);
        stream.backward(queries, documents, work, scores, gradients).map_err(text)
    })
}

/// An error with the causes behind it.
pub(crate) fn text(error: maxsim::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        // The library's message may have it already.
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text += &format!(": {cause_text}");
        }
        source = cause.source();
    }
    text
}
