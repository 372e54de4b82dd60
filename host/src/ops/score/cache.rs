//! Prepared work by what it is of, so that calls with new handles and old shapes prepare nothing.

use std::sync::{Arc, Mutex};

use twox_hash::XxHash3_64;

use super::prepared::PreparedScore;
use crate::device::Device;
use crate::device::tokens::DeviceTokens;
use crate::error::Result;
use crate::plan::limits::Access;
use crate::problem::options::ScoreOptions;
use crate::problem::pairing::{Kind, Pairing};
use crate::runtime::on::On;
use crate::runtime::swap::lock;
use crate::tokens::format::{Format, ScorableWith, TokenFormat};
use crate::tokens::layout::TokenLayout;

/// Most works that are kept of items of one length, whose calls come again and again.
const REGULAR_MAX: usize = 64;

/// Most works that are kept of other items, which hardly ever come again but for their gradients.
const OTHER_MAX: usize = 16;

/// Most bytes of lists on a device of a work that is kept.
const LIST_BYTES_MAX: u64 = 1 << 20;

/// The works of all devices.
static CACHE: Mutex<Cache> =
    Mutex::new(Cache { regular: Shelf::new(REGULAR_MAX), other: Shelf::new(OTHER_MAX) });

#[derive(Debug)]
struct Cache {
    regular: Shelf,
    other: Shelf,
}

/// So many works, of which the one goes that was not used for longest.
#[derive(Debug)]
struct Shelf {
    kept: Vec<Kept>,
    most: usize,
    /// Number of uses so far.
    uses: u64,
}

#[derive(Debug)]
struct Kept {
    key: u64,
    /// Number of its last use.
    used: u64,
    work: Arc<PreparedScore>,
}

impl Shelf {
    const fn new(most: usize) -> Shelf {
        Shelf { kept: Vec::new(), most, uses: 0 }
    }

    /// A work with this key, for the caller to look at.
    fn get(&mut self, key: u64) -> Option<Arc<PreparedScore>> {
        self.uses += 1;
        let found = self.kept.iter_mut().find(|kept| kept.key == key)?;
        found.used = self.uses;
        Some(found.work.clone())
    }

    /// Keeps a work in place of one with its key, or of the one that was used least lately; that
    /// is returned, to be dropped without the lock.
    fn put(&mut self, key: u64, work: Arc<PreparedScore>) -> Option<Kept> {
        self.uses += 1;
        let same = self.kept.iter().position(|kept| kept.key == key);
        let least = || (0..self.kept.len()).min_by_key(|&i| self.kept[i].used);
        let place = if self.kept.len() < self.most { same } else { same.or_else(least) };
        let kept = Kept { key, used: self.uses, work };
        match place {
            Some(place) => Some(std::mem::replace(&mut self.kept[place], kept)),
            None => {
                self.kept.push(kept);
                None
            }
        }
    }
}

impl Cache {
    fn shelf(&mut self, is_regular: bool) -> &mut Shelf {
        if is_regular { &mut self.regular } else { &mut self.other }
    }
}

/// What a work is of.
struct Call<'a> {
    device: &'a Device,
    formats: [TokenFormat; 2],
    layouts: [&'a Arc<TokenLayout>; 2],
    access: [Access; 2],
    pairing: &'a Pairing,
    options: &'a ScoreOptions,
}

impl Call<'_> {
    fn is_regular(&self) -> bool {
        let are_listed = matches!(self.pairing.0, Kind::Candidates { .. } | Kind::Pairs { .. });
        !are_listed
            && self
                .layouts
                .iter()
                .all(|layout| layout.regular_len().is_some() || layout.is_unread())
    }

    /// The same for equal calls; hardly ever for others.
    fn key(&self) -> u64 {
        let pairing = match &self.pairing.0 {
            Kind::Cross => [0, 0],
            Kind::OwnCandidates { k } => [1, *k as u64],
            Kind::Candidates { ids, k } => {
                [XxHash3_64::oneshot_with_seed(2, bytemuck::cast_slice(ids)), *k as u64]
            }
            Kind::Pairs { ids } => {
                [XxHash3_64::oneshot_with_seed(3, bytemuck::cast_slice(ids)), ids.len() as u64]
            }
        };
        let ScoreOptions { winners, token_scores, allow_tf32, normalize, angular, .. } =
            *self.options;
        let flags =
            [winners, token_scores, allow_tf32, normalize, angular, self.options.consistent];
        let flags = flags.iter().fold(0, |all, &flag| (all << 1) | u64::from(flag));
        let ordinal = self.device.ordinal().map_or(0, |ordinal| ordinal as u64 + 1);
        let mut words = [0; 16];
        words[..4].copy_from_slice(&[pairing[0], pairing[1], flags, ordinal]);
        for (side, words) in words[4..].chunks_exact_mut(6).enumerate() {
            let layout = self.layouts[side];
            let (is_aligned, pitch_bytes, n_centroids) = self.access[side].class();
            let name = self.formats[side].name().bytes();
            let format =
                name.fold(0u64, |all, byte| all.wrapping_mul(31).wrapping_add(u64::from(byte)));
            words.copy_from_slice(&[
                layout.key(),
                layout.rows() as u64,
                layout.dim() as u64,
                pitch_bytes,
                (u64::from(n_centroids) << 1) | u64::from(is_aligned),
                (format << 2)
                    | (u64::from(layout.is_weighted()) << 1)
                    | u64::from(layout.is_masked()),
            ]);
        }
        XxHash3_64::oneshot(bytemuck::cast_slice(&words))
    }

    /// Whether a work is of this call.
    fn is_of(&self, work: &PreparedScore) -> bool {
        let is_side = |side: usize, of: &Arc<TokenLayout>| {
            let layout = self.layouts[side];
            let is_same = Arc::ptr_eq(of, layout)
                || of.is_masked() == layout.is_masked() && of.same_items(layout);
            is_same && work.access[side].class() == self.access[side].class()
        };
        self.device.check_same("work", &work.device).is_ok()
            && self.formats == work.formats
            && is_side(0, &work.queries)
            && is_side(1, &work.documents)
            && *self.pairing == *work.pairing
            && *self.options == work.options
    }
}

impl PreparedScore {
    /// Bytes of its lists on a device.
    fn list_bytes(&self) -> u64 {
        match &self.inner {
            On::Cpu(()) => 0,
            On::Cuda(work) => work.list_bytes(),
        }
    }
}

impl Device {
    /// As [`Device::prepare`], and kept: the next call of handles with the same layouts, formats
    /// and alignment, whatever their memory, and with the same pairing and options finds the work
    /// again, in less than a microsecond where every item is equally long. A bounded number of
    /// works is kept, of which the one that was used least lately goes, and none with lists of more
    /// than a megabyte.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use maxsim::stream::{PreparedScore, Queue};
    /// use maxsim::{Device, Pairing, ScoreOptions, Tokens};
    ///
    /// let device = Device::best();
    /// let mut stream = device.stream()?;
    /// let (cross, options) = (Pairing::cross(), ScoreOptions::default());
    /// let mut works: Vec<Arc<PreparedScore>> = Vec::new();
    /// for scale in [1.0f32, 2.0] {
    ///     let rows = [scale, 0.0, 0.0, scale];
    ///     let tokens = device.upload(&Tokens::padded(&rows, 1, 2, 2)?)?;
    ///     let work = device.prepare_cached(&tokens, &tokens, &cross, &options)?;
    ///     let mut scores = work.new_scores()?;
    ///     stream.score_into(&tokens, &tokens, &work, &mut scores)?;
    ///     assert_eq!(scores.read()?.values(), [2.0 * scale * scale]);
    ///     works.push(work);
    /// }
    /// assert!(Arc::ptr_eq(&works[0], &works[1]));
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Device::prepare`].
    pub fn prepare_cached<Q: ScorableWith<D>, D: Format>(
        &self,
        queries: &DeviceTokens<Q>,
        documents: &DeviceTokens<D>,
        pairing: &Pairing,
        options: &ScoreOptions,
    ) -> Result<Arc<PreparedScore>> {
        let call = Call {
            device: self,
            formats: [Q::FORMAT, D::FORMAT],
            layouts: [&queries.layout, &documents.layout],
            access: [queries.access(), documents.access()],
            pairing,
            options,
        };
        let (key, is_regular) = (call.key(), call.is_regular());
        let found = lock(&CACHE).shelf(is_regular).get(key);
        if let Some(work) = found
            && call.is_of(&work)
        {
            self.check_same("queries", queries.device())?;
            self.check_same("documents", documents.device())?;
            return Ok(work);
        }
        let work = Arc::new(self.prepare(queries, documents, pairing, options)?);
        if work.list_bytes() > LIST_BYTES_MAX {
            return Ok(work);
        }
        let old = lock(&CACHE).shelf(is_regular).put(key, work.clone());
        drop(old);
        Ok(work)
    }
}
