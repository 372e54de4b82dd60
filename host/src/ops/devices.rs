//! Several devices that search as one.

use std::fmt;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::Mutex;
use std::thread;

use super::streaming::options::{StreamFound, StreamOptions};
use super::streaming::search_on;
use crate::device::Device;
use crate::device::tokens::{DeviceTokens, TokensRef};
use crate::error::{Error, Result};
use crate::plan::limits::Access;
use crate::problem::Problem;
use crate::problem::chunks::shares;
use crate::problem::options::ScoreOptions;
use crate::problem::pairing::Pairing;
use crate::problem::ranking::Ranking;
use crate::residual::streamed::{ResidualSource, StreamedResiduals};
use crate::runtime::interrupt::Interrupt;
use crate::runtime::swap::lock;
use crate::tokens::Tokens;
use crate::tokens::element::Element;
use crate::tokens::format::{Format, ScorableWith, TokenFormat};
use crate::tokens::layout::TokenLayout;
use crate::tokens::streamed::{Source, Streamed};

/// Several devices that search as one: each has, or reads, some consecutive documents, and what
/// they find is merged. At least one, all GPUs or all the CPU.
///
/// ```
/// use maxsim::streaming::{Shards, StreamOptions};
/// use maxsim::{Devices, ScoreOptions, Tokens};
///
/// let devices = Devices::all();
/// let queries = Tokens::padded(&[1.0f32, 0.0, 0.0, 1.0], 1, 2, 2)?;
/// let documents = Tokens::packed(&[2.0f32, 0.0, 3.0, 4.0, -1.0, 5.0], 2, &[0i64, 1, 3])?;
///
/// // A corpus that the devices have room for.
/// let shards: Shards<f32> = devices.upload(&documents)?;
/// assert_eq!(shards.layout().n_items(), 2);
/// let best = devices.top_k(&queries, &shards, &ScoreOptions::default(), 1)?;
/// assert_eq!((best[0].ranked[0].id, best[0].ranked[0].score), (1, 8.0));
///
/// // A corpus that passes by.
/// let found = devices.search_stream(&queries, &documents, 1, &StreamOptions::default())?;
/// assert_eq!(found.rankings, best);
/// # Ok::<(), maxsim::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Devices(Vec<Device>);

/// Documents on several devices: some consecutive ones on each, of about as many tokens.
#[must_use]
pub struct Shards<D: Format> {
    devices: Vec<Device>,
    layout: TokenLayout,
    /// The documents of each device, and which these are.
    shards: Vec<(Range<usize>, DeviceTokens<D>)>,
    /// The kernel of the last call.
    planned: Mutex<Option<Planned>>,
}

/// The kernel that one device would run for all documents: what it was chosen for, and the options
/// with its name. To choose it again takes longer than to enqueue the call.
struct Planned {
    queries: TokenLayout,
    format: TokenFormat,
    options: ScoreOptions,
    named: ScoreOptions,
}

impl Planned {
    fn is_of(&self, queries: &TokenLayout, format: TokenFormat, options: &ScoreOptions) -> bool {
        self.format == format
            && self.options == *options
            && self.queries.is_masked() == queries.is_masked()
            && self.queries.same_items(queries)
    }
}

/// Prints the devices and the layout.
impl<D: Format> fmt::Debug for Shards<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shards")
            .field("devices", &self.devices)
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

impl<D: Format> Shards<D> {
    /// Shape and items of all documents.
    pub fn layout(&self) -> &TokenLayout {
        &self.layout
    }
}

impl Devices {
    /// All GPUs that can run the kernels, or else the CPU.
    pub fn all() -> Devices {
        let mut devices = Device::all();
        // The CPU is the last one.
        if devices.len() > 1 {
            devices.pop();
        }
        Devices(devices)
    }

    /// These devices. One may be named several times, and has several shares then.
    ///
    /// ```
    /// use maxsim::{Device, Devices};
    ///
    /// let devices = Devices::new([Device::cpu(), Device::cpu()])?;
    /// assert_eq!(devices.devices().len(), 2);
    /// assert!(Devices::new([]).is_err());
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] for none, and for GPUs together with the CPU, which would give scores other
    /// bits and hold the GPUs up.
    pub fn new(devices: impl Into<Vec<Device>>) -> Result<Devices> {
        let devices = devices.into();
        let n_cpu = devices.iter().filter(|device| device.ordinal().is_none()).count();
        if devices.is_empty() || (n_cpu > 0 && n_cpu < devices.len()) {
            return Err(Error::Shape {
                argument: "devices",
                expected: "at least one, all GPUs or all the CPU".into(),
                found: format!("{} of {} are the CPU", n_cpu, devices.len()),
            });
        }
        Ok(Devices(devices))
    }

    /// The devices, in the order of their shares.
    pub fn devices(&self) -> &[Device] {
        &self.0
    }

    /// Copies documents to the devices, to be searched any number of times: to each some
    /// consecutive ones, of about as many tokens.
    ///
    /// # Errors
    /// Those of [`Device::upload`].
    pub fn upload<D: Format>(&self, documents: &Tokens<'_, D>) -> Result<Shards<D>> {
        let layout = documents.layout();
        documents.check_scales()?;
        let lengths = (0..layout.n_items()).map(|item| layout.item_len(item));
        let shares = shares(lengths, self.0.len());
        let shards = on_each(&self.0, &shares, |device, items| {
            Ok((items.clone(), device.upload(&documents.items(items)?)?))
        })?;
        Ok(Shards {
            devices: self.0.clone(),
            layout: layout.clone(),
            shards,
            planned: Mutex::new(None),
        })
    }

    /// The best `k` documents of each query, as [`Device::top_k`] of a device that had them all.
    ///
    /// GPUs of one kind give the same scores to the bit as one of them, where they run the kernel
    /// that it would run for all documents: so they do, unless that kernel cannot run a share.
    ///
    /// # Errors
    /// [`Error::WrongDevice`] for documents on other devices. Those of [`Device::top_k`].
    pub fn top_k<Q: ScorableWith<D>, D: Format>(
        &self,
        queries: &Tokens<'_, Q>,
        documents: &Shards<D>,
        options: &ScoreOptions,
        k: usize,
    ) -> Result<Vec<Ranking>> {
        if self.0.len() != documents.devices.len() {
            return Err(Error::WrongDevice {
                argument: "documents",
                expected: format!("{} devices", self.0.len()),
                found: format!("{} devices", documents.devices.len()),
            });
        }
        // Before a kernel is chosen, and kept, by the first device for its shard.
        for (device, (_, tokens)) in self.0.iter().zip(&documents.shards) {
            device.check_same("documents", tokens.device())?;
        }
        let whole = self.kernel_of_all(queries, documents, options)?;
        let interrupt = Interrupt::current();
        let shards: Vec<_> = documents.shards.iter().collect();
        let found = on_each(&self.0, &shards, |device, (items, tokens)| {
            interrupt.heeded_by(|| {
                let mut rankings = top_k_as(device, queries, tokens, [&whole, options], k)?;
                for found in rankings.iter_mut().flat_map(|ranking| &mut ranking.ranked) {
                    // Ids are below 2³¹, as items are.
                    found.id += items.start as u32;
                }
                Ok(rankings)
            })
        })?;
        let of_query = |query: usize| found.iter().map(move |shard| shard[query].clone());
        let n_queries = queries.layout().n_items();
        Ok((0..n_queries).map(|query| Ranking::merge(of_query(query), k)).collect())
    }

    /// The best `k` documents of each query among documents that pass by, as
    /// [`Device::search_stream`]: each device reads some consecutive ones, in the chunks of one
    /// device. GPUs of one kind give the ranking of one of them, to the bit.
    ///
    /// # Errors
    /// Those of [`Device::search_stream`], from whichever device.
    pub fn search_stream<Q: ScorableWith<D>, D: Format>(
        &self,
        queries: &Tokens<'_, Q>,
        source: &impl Source<D>,
        k: usize,
        options: &StreamOptions,
    ) -> Result<StreamFound> {
        search_on(&self.0, TokensRef::Host(queries), &Streamed::new(source)?, k, options)
    }

    /// As [`Devices::search_stream`], of residual-compressed documents:
    /// [`Device::search_residual_stream`].
    ///
    /// ```no_run
    /// use maxsim::half::f16;
    /// use maxsim::residual::ResidualTokens;
    /// use maxsim::streaming::StreamOptions;
    /// use maxsim::{Devices, Ranking, Result, Tokens};
    ///
    /// /// The best ten of a corpus, on all GPUs.
    /// fn search(queries: &Tokens<'_, f16>, corpus: &ResidualTokens<'_>) -> Result<Vec<Ranking>> {
    ///     let (corpus, options) = (corpus.arranged()?, StreamOptions::default());
    ///     let found = Devices::all().search_residual_stream(queries, &corpus, 10, &options)?;
    ///     Ok(found.rankings)
    /// }
    /// ```
    ///
    /// # Errors
    /// Those of [`Device::search_residual_stream`], from whichever device.
    pub fn search_residual_stream<T: Element>(
        &self,
        queries: &Tokens<'_, T>,
        source: &impl ResidualSource,
        k: usize,
        options: &StreamOptions,
    ) -> Result<StreamFound> {
        let documents = StreamedResiduals::new(source)?;
        search_on(&self.0, TokensRef::Host(queries), &documents, k, options)
    }

    /// The options with the kernel that one of the devices would run for all documents.
    fn kernel_of_all<Q: ScorableWith<D>, D: Format>(
        &self,
        queries: &Tokens<'_, Q>,
        documents: &Shards<D>,
        options: &ScoreOptions,
    ) -> Result<ScoreOptions> {
        let (device, cross) = (&self.0[0], Pairing::cross());
        if device.ordinal().is_none() {
            return Ok(options.clone());
        }
        let layout = queries.layout();
        if let Some(planned) = &*lock(&documents.planned)
            && planned.is_of(layout, Q::FORMAT, options)
        {
            return Ok(planned.named.clone());
        }
        let access = [Access::uploaded(layout.dim(), Q::FORMAT), documents.shards[0].1.access()];
        let problem = match Problem::new(layout, &documents.layout, &cross) {
            Ok(problem) => problem,
            // More pairs than one device counts.
            Err(Error::TooLarge { .. }) => return Ok(options.clone()),
            Err(error) => return Err(error),
        };
        let plan = device.plan_formats(&problem, [Q::FORMAT, D::FORMAT], access, options)?;
        let named = options.clone().kernel(plan.name());
        *lock(&documents.planned) = Some(Planned {
            queries: layout.clone(),
            format: Q::FORMAT,
            options: options.clone(),
            named: named.clone(),
        });
        Ok(named)
    }
}

/// The ranking of a device with the first options under which it can run the call.
fn top_k_as<Q: ScorableWith<D>, D: Format>(
    device: &Device,
    queries: &Tokens<'_, Q>,
    documents: &DeviceTokens<D>,
    [wanted, others]: [&ScoreOptions; 2],
    k: usize,
) -> Result<Vec<Ranking>> {
    let cross = Pairing::cross();
    match device.top_k(queries, documents, &cross, wanted, k) {
        Err(Error::Unsupported { .. }) => device.top_k(queries, documents, &cross, others, k),
        found => found,
    }
}

/// Runs a part of a call on each device, on a thread of its own where there are several, or on this
/// one where no more can be had. The error is that of the first device that failed by itself.
pub(super) fn on_each<P: Clone + Send + Sync, R: Send>(
    devices: &[Device],
    parts: &[P],
    run: impl Fn(&Device, P) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let n = devices.len().min(parts.len());
    let found: Vec<Mutex<Option<R>>> = (0..n).map(|_| Mutex::default()).collect();
    on_threads(n, &|i| {
        let done = run(&devices[i], parts[i].clone())?;
        *lock(&found[i]) = Some(done);
        Ok(())
    })?;
    Ok(found.into_iter().filter_map(|found| lock(&found).take()).collect())
}

/// Runs `n` parts, each on a thread of its own where there are several. Not of any types, so that
/// programs have it once.
fn on_threads(n: usize, run: &(dyn Fn(usize) -> Result<()> + Sync)) -> Result<()> {
    if n == 1 {
        return run(0);
    }
    let found = thread::scope(|scope| {
        let start = |i| {
            let started = thread::Builder::new().spawn_scoped(scope, move || run(i));
            started.map_err(|_| run(i))
        };
        let threads: Vec<_> = (0..n).map(start).collect();
        type Started<'s, T> = std::result::Result<thread::ScopedJoinHandle<'s, T>, T>;
        let join = |started: Started<'_, Result<()>>| match started {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(found) => found,
        };
        threads.into_iter().map(join).collect::<Vec<_>>()
    });
    let mut ended = None;
    for found in found {
        match found {
            Ok(()) => {}
            // It was ended for the sake of another one, or of the caller.
            Err(error @ Error::Interrupted) => ended = ended.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    ended.map_or(Ok(()), Err)
}
