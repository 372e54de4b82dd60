//! Selections made ready, and the best of each query on a device.

use std::sync::Arc;

use crate::cuda::{CudaTokens, CudaTopK, CudaTopKWork};
use crate::device::Device;
use crate::device::tokens::DeviceTokens;
use crate::error::{Error, Result};
use crate::ops::score::prepared::{PreparedScore, check_side};
use crate::problem::Problem;
use crate::problem::ranking::Ranking;
use crate::problem::top_k::{BestKeys, RankedRows, check_k};
use crate::runtime::on::On;
use crate::runtime::swap::Swap;
use crate::tokens::format::Format;
use crate::tokens::layout::TokenLayout;

/// The selection of the best k documents of each query made ready, for any scores of the work that
/// it was prepared for.
///
/// The ranking is that of [`Scores::top_k_of`](crate::Scores::top_k_of), whatever selects it: the
/// best score first, equal scores by lower id, then NaN, then documents without tokens. Scores of
/// pairs have a row for each query, of all its pairs. (Every NaN becomes one NaN, and −0 becomes
/// 0.)
///
/// ```
/// use maxsim::stream::{DeviceTopK, PreparedTopK, Queue};
/// use maxsim::{Device, Pairing, ScoreOptions, Tokens};
///
/// // Two queries and three documents of one token each; dim 2.
/// let device = Device::best();
/// let queries = device.upload(&Tokens::padded(&[1.0f32, 0.0, 0.0, 1.0], 2, 1, 2)?)?;
/// let documents = [1.0f32, 0.5, 3.0, 0.0, 2.0, 2.0];
/// let documents = device.upload(&Tokens::padded(&documents, 3, 1, 2)?)?;
/// let work =
///     device.prepare(&queries, &documents, &Pairing::cross(), &ScoreOptions::default())?;
/// let top_k: PreparedTopK = device.prepare_top_k(&work, &documents, 2)?;
/// assert_eq!(top_k.k(), 2);
///
/// let mut scores = work.new_scores()?;
/// let mut best: DeviceTopK = top_k.new_best()?;
/// let mut search = device.capture(|capture| {
///     capture.score_into(&queries, &documents, &work, &mut scores)?;
///     capture.top_k_into(&scores, &top_k, &mut best)
/// })?;
/// search.launch(&mut device.stream()?)?; // returns at once
/// let rankings = best.read()?; // waits, and copies the best of each query alone
/// assert_eq!(rankings[0].ranked.iter().map(|found| found.id).collect::<Vec<_>>(), [1, 2]);
/// assert_eq!(rankings[1].ranked.iter().map(|found| found.id).collect::<Vec<_>>(), [2, 0]);
/// # Ok::<(), maxsim::Error>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct PreparedTopK {
    pub(super) device: Device,
    pub(super) k: usize,
    pub(super) rows: Arc<RankedRows>,
    pub(super) inner: On<(), Arc<CudaTopKWork>>,
}

/// The best k documents of each query on a device: written by
/// [`Queue::top_k_into`](crate::stream::Queue::top_k_into), added to by
/// [`Queue::top_k_more`](crate::stream::Queue::top_k_more), read when needed.
///
/// A corpus that comes in chunks has one running best, which is read once:
///
/// ```
/// use maxsim::stream::Queue;
/// use maxsim::{Device, Pairing, ScoreOptions, Tokens};
///
/// let device = Device::best();
/// let query = device.upload(&Tokens::padded(&[1.0f32], 1, 1, 1)?)?;
/// let mut stream = device.stream()?;
/// let mut best = None;
/// for (first_id, chunk) in [(0, [3.0f32, 1.0, 2.0]), (3, [5.0, 3.0, 0.0])] {
///     let documents = device.upload(&Tokens::padded(&chunk, 3, 1, 1)?)?;
///     let work =
///         device.prepare(&query, &documents, &Pairing::cross(), &ScoreOptions::default())?;
///     let top_k = device.prepare_top_k(&work, &documents, 2)?;
///     let mut scores = work.new_scores()?;
///     stream.score_into(&query, &documents, &work, &mut scores)?;
///     let best = match &mut best {
///         Some(best) => best,
///         none => none.insert(top_k.new_best()?),
///     };
///     stream.top_k_more(&scores, &top_k, first_id, best)?;
/// }
/// let best = &best.expect("chunks").read()?[0];
/// assert_eq!(best.ranked.iter().map(|found| found.id).collect::<Vec<_>>(), [3, 0]);
/// # Ok::<(), maxsim::Error>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct DeviceTopK {
    pub(super) device: Device,
    pub(super) n_rows: usize,
    pub(super) k: usize,
    pub(crate) inner: On<Arc<Swap<BestKeys>>, Arc<CudaTopK>>,
}

impl Device {
    /// Makes the selection of the best `k` documents of each query ready, for scores of `work`
    /// ([`PreparedScore`], or [`PreparedRescore`](crate::search::PreparedRescore)) and of these
    /// `documents`, which say which of them have no token: of others with another mask prepare
    /// another selection.
    ///
    /// # Errors
    /// [`Error::TooLarge`] for a `k` above 4096: read the scores, and use
    /// [`Scores::top_k_of`](crate::Scores::top_k_of). [`Error::Shape`] for documents that the work
    /// was not prepared for. [`Error::Unsupported`] where the host does not know which documents
    /// have tokens; see [`Device::prepare_top_k_reading`]. [`Error::WrongDevice`],
    /// [`Error::HostMemory`], [`Error::DeviceMemory`].
    pub fn prepare_top_k(
        &self,
        work: &impl AsRef<PreparedScore>,
        documents: &impl AsRef<TokenLayout>,
        k: usize,
    ) -> Result<PreparedTopK> {
        self.top_k_of(work.as_ref(), documents.as_ref(), k, None)
    }

    /// As [`Device::prepare_top_k`], where lengths or masks of documents are on the device alone
    /// ([`TokenLayout::unread`](crate::TokenLayout::unread),
    /// [`TokenLayout::with_unread_mask`](crate::TokenLayout::with_unread_mask)): calls read those
    /// of `documents`, where a score is 0.
    ///
    /// ```no_run
    /// use maxsim::stream::{PreparedScore, PreparedTopK};
    /// use maxsim::{Device, DeviceTokens, Result};
    ///
    /// /// A selection among documents of another library, whose lengths are on the device.
    /// fn ready(
    ///     device: &Device,
    ///     work: &PreparedScore,
    ///     documents: &DeviceTokens<f32>,
    /// ) -> Result<PreparedTopK> {
    ///     device.prepare_top_k_reading(work, documents, 100)
    /// }
    /// ```
    ///
    /// # Errors
    /// Those of [`Device::prepare_top_k`], and [`Error::Shape`] where the handle is not one that
    /// the work was prepared for.
    pub fn prepare_top_k_reading<D: Format>(
        &self,
        work: &PreparedScore,
        documents: &DeviceTokens<D>,
        k: usize,
    ) -> Result<PreparedTopK> {
        self.check_same("work", &work.device)?;
        check_side(&work.device, "documents", documents, work.formats[1], &work.documents)?;
        let items = match &self.0 {
            On::Cpu(()) => None,
            On::Cuda(_) => Some(documents.cuda_tokens()?),
        };
        self.top_k_of(work, documents.layout(), k, items)
    }

    fn top_k_of(
        &self,
        work: &PreparedScore,
        documents: &TokenLayout,
        k: usize,
        items: Option<&Arc<CudaTokens>>,
    ) -> Result<PreparedTopK> {
        self.check_same("work", &work.device)?;
        check_k(k)?;
        if !documents.same_items(&work.documents) {
            return Err(Error::Shape {
                argument: "documents",
                expected: format!("those of the work, {:?}", work.documents),
                found: format!("{documents:?}"),
            });
        }
        let problem = Problem::new(&work.queries, documents, &work.pairing)?;
        let rows = RankedRows::new(&problem)?;
        let reads = items.filter(|_| !rows.knows_empty);
        if !rows.knows_empty && reads.is_none() {
            return Err(Error::Unsupported {
                what: "ranking documents whose lengths or mask the host does not know".into(),
                why: "which of them have no tokens is not known; use \
                      Device::prepare_top_k_reading"
                    .into(),
            });
        }
        let inner = match &self.0 {
            On::Cpu(()) => On::Cpu(()),
            On::Cuda(cuda) => On::Cuda(Arc::new(CudaTopKWork::new(cuda, &rows, k, reads)?)),
        };
        Ok(PreparedTopK { device: self.clone(), k, rows: Arc::new(rows), inner })
    }
}

impl PreparedTopK {
    /// The device that the work runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Documents of each query that are selected at most.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Bytes of workspace that calls need, 0 of rows of up to 65 536 scores; a stream that has none
    /// of the caller's ([`Stream::set_workspace`](crate::stream::Stream::set_workspace)) allocates
    /// them once.
    ///
    /// ```no_run
    /// use maxsim::Result;
    /// use maxsim::stream::{DeviceTopK, PreparedTopK, Stream};
    ///
    /// /// Makes room for a selection and what it selects in memory of another library.
    /// ///
    /// /// # Safety
    /// /// What it allocates stays for as long as the stream's work and the result use it.
    /// unsafe fn make_room(
    ///     stream: &mut Stream,
    ///     top_k: &PreparedTopK,
    ///     allocate: impl Fn(u64) -> u64,
    /// ) -> Result<DeviceTopK> {
    ///     let (n, [keys, counts]) = (top_k.workspace_bytes(), top_k.len_bytes().map(&allocate));
    ///     // SAFETY: the caller's promise.
    ///     unsafe {
    ///         stream.set_workspace(allocate(n), n)?;
    ///         DeviceTopK::from_raw_parts(top_k, keys, counts)
    ///     }
    /// }
    /// ```
    pub fn workspace_bytes(&self) -> u64 {
        match &self.inner {
            On::Cpu(()) => 0,
            On::Cuda(work) => work.workspace_bytes(),
        }
    }

    /// Bytes of keys and of counts of a [`DeviceTopK`]: so much memory of the caller must there be.
    pub fn len_bytes(&self) -> [u64; 2] {
        let n_rows = self.rows.n_rows as u64;
        [n_rows * self.k as u64 * 8, n_rows * 16]
    }

    /// Number of queries, and k.
    pub(crate) fn shape(&self) -> [usize; 2] {
        [self.rows.n_rows, self.k]
    }

    /// Room for the best of each query: none.
    ///
    /// # Errors
    /// [`Error::HostMemory`] or [`Error::DeviceMemory`] where there is no room.
    pub fn new_best(&self) -> Result<DeviceTopK> {
        let (n_rows, k) = (self.rows.n_rows, self.k);
        let inner = match &self.device.0 {
            On::Cpu(()) => On::Cpu(Arc::new(Swap::new(BestKeys::new(n_rows, k)?))),
            On::Cuda(cuda) => On::Cuda(Arc::new(CudaTopK::new(cuda, n_rows, k)?)),
        };
        Ok(DeviceTopK { device: self.device.clone(), n_rows, k, inner })
    }

    /// Room with anything in it, on a GPU: to be given to a call before it is read.
    pub(crate) fn new_unfilled(&self) -> Result<DeviceTopK> {
        match &self.device.0 {
            On::Cpu(()) => self.new_best(),
            On::Cuda(cuda) => {
                let keys = CudaTopK::unfilled(cuda, self.rows.n_rows, self.k)?;
                Ok(DeviceTopK::of_keys(self, keys))
            }
        }
    }
}

impl DeviceTopK {
    /// Makes one of these keys.
    pub(crate) fn of_keys(work: &PreparedTopK, keys: CudaTopK) -> DeviceTopK {
        let (device, n_rows, k) = (work.device.clone(), work.rows.n_rows, work.k);
        DeviceTopK { device, n_rows, k, inner: On::Cuda(Arc::new(keys)) }
    }

    /// Waits for the last call or launch that was given this, and copies the ranking of each query
    /// to the host.
    ///
    /// # Errors
    /// [`Error::HostMemory`] where there is no room; [`Error::DeviceLost`] after a fault.
    pub fn read(&self) -> Result<Vec<Ranking>> {
        match &self.inner {
            On::Cpu(best) => Ok(best.get().rankings()),
            On::Cuda(best) => Ok(best.read()?.rankings()),
        }
    }

    /// Device addresses of the keys `[n_queries, k]` and of the numbers of NaN and of empty
    /// documents `[n_queries, 2]`, all u64; `None` on the CPU. Order work that reads them behind
    /// the stream that writes them.
    ///
    /// A key has the complement of the id in its lower 32 bits. In the upper ones, 0 is no
    /// document, 1 one without tokens, and 2 one whose score is NaN. Above that are scores: with
    /// the topmost bit set the bits of a score that is not negative, else the complement of the
    /// bits of a negative one. Keys of a query fall.
    pub fn addresses(&self) -> Option<[u64; 2]> {
        match &self.inner {
            On::Cpu(_) => None,
            On::Cuda(best) => Some(best.addresses()),
        }
    }
}
