//! A search for one query that a GPU drives: from the scan on, it selects candidates, scores them,
//! finds what may come before the k-th of them and scores that, without a wait in between. The host
//! reads once, and proves.

use std::cmp::Ordering;
use std::sync::{Arc, Mutex};

use maxsim_kernels::abi::params::search::{
    CANDIDATES_MAX, DOCUMENTS_MAX, NO_DOCUMENT, ROOM_MAX, item_of,
};

use super::pair_bounds::PairBounds;
use super::rounds::{round_up, unread};
use super::scan::{Search, Unseen};
use super::scanned::Scanned;
use super::{Bounded, Candidate, Shortlist};
use crate::cuda::{CudaDevice, CudaOutputs, CudaSearch, CudaTerms, SearchCall, Selection};
use crate::device::Device;
use crate::device::command::{Command, CudaCommand};
use crate::error::Result;
use crate::ops::score::prepared::DeviceScores;
use crate::problem::options::ScoreOptions;
use crate::problem::pairing::Pairing;
use crate::problem::ranking::Ranked;
use crate::runtime::on::On;
use crate::runtime::swap::lock;
use crate::tokens::element::Element;

/// Documents beside the candidates for which there is room at first.
const ROOM_MIN: usize = 1024;

/// Most rooms that are kept: for searches at the same time, and of other numbers of candidates.
const ROOMS_MAX: usize = 8;

/// What devices have of the terms of documents: 12 bytes of each, copied by the first search that a
/// device drives. Clones are the same.
#[derive(Clone, Default)]
pub(super) struct There(Arc<Mutex<Vec<OnDevice>>>);

struct OnDevice {
    device: Device,
    terms: Arc<CudaTerms>,
    /// The most documents that searches found beside candidates, or less the longer that is ago.
    most_found: usize,
    /// Rooms that no search uses, the last used at the end.
    rooms: Vec<CudaSearch>,
}

impl There {
    /// Takes the terms and room for a search that has so many candidates; `None` where the last
    /// searches found more than there may be room for.
    fn take(
        &self,
        (device, cuda): (&Device, &Arc<CudaDevice>),
        bounds: &PairBounds<'_>,
        n_candidates: usize,
    ) -> Result<Option<(Arc<CudaTerms>, CudaSearch)>> {
        let take = |there: &mut OnDevice| {
            let sizes = [n_candidates, round_up(n_candidates), room_for(there.most_found)];
            let kept = there.rooms.iter().rposition(|room| room.sizes() == sizes);
            (there.terms.clone(), sizes, kept.map(|place| there.rooms.remove(place)))
        };
        let known = lock(&self.0).iter_mut().find(|there| there.is_on(device)).map(take);
        let (terms, sizes, kept) = match known {
            Some(known) => known,
            None => {
                let columns = bounds.linear(0).columns;
                let columns = [&columns.l2, &columns.u2, &columns.magnitude];
                let columns = columns.map(|column| column.as_flattened());
                let terms = Arc::new(CudaTerms::new(cuda, bounds.n_documents(), columns)?);
                let new =
                    OnDevice { device: device.clone(), terms, most_found: 0, rooms: Vec::new() };
                let mut all = lock(&self.0);
                // Where another thread came first, its copy serves both.
                let place = all.iter().position(|there| there.is_on(device));
                let place = place.unwrap_or_else(|| {
                    all.push(new);
                    all.len() - 1
                });
                take(&mut all[place])
            }
        };
        if sizes[2] > ROOM_MAX as usize {
            self.put(device, None, 0);
            return Ok(None);
        }
        let search = match kept {
            Some(kept) => kept,
            None => CudaSearch::new(cuda, sizes)?,
        };
        Ok(Some((terms, search)))
    }

    /// Keeps the room of a search, and how many documents it found.
    fn put(&self, device: &Device, room: Option<CudaSearch>, n_found: usize) {
        let mut surplus = Vec::new();
        if let Some(there) = lock(&self.0).iter_mut().find(|there| there.is_on(device)) {
            there.most_found = n_found.max(there.most_found - there.most_found / 64);
            there.rooms.extend(room);
            let size = room_for(there.most_found);
            surplus.extend(there.rooms.extract_if(.., |room| room.sizes()[2] != size));
            let n_more = there.rooms.len().saturating_sub(ROOMS_MAX);
            surplus.extend(there.rooms.drain(..n_more));
        }
        // Memory is given back outside the lock.
        drop(surplus);
    }
}

impl OnDevice {
    fn is_on(&self, device: &Device) -> bool {
        self.device.check_same("device", device).is_ok()
    }
}

/// Room for an eighth more documents than were found: of few sizes, since calls are prepared for
/// each.
fn room_for(n_found: usize) -> usize {
    round_up((n_found + n_found / 8).max(ROOM_MIN))
}

/// What a device found: see
/// [`SearchParams::rows`](maxsim_kernels::abi::params::search::SearchParams::rows).
pub(super) struct Found {
    pub rows: Vec<[u32; 4]>,
    pub n_candidates: usize,
    /// The scores in full precision of the items of what was found; none where they are not wanted.
    pub scores: Vec<f32>,
}

/// A document that was found and scored in full precision.
#[derive(Clone, Copy)]
struct Scored {
    candidate: Candidate,
    exact: f32,
}

impl Scored {
    fn of_row([id, score, bound, exact]: [u32; 4]) -> Scored {
        let [score, bound, exact] = [score, bound, exact].map(f32::from_bits);
        Scored { candidate: Candidate { id, score, bound, has_tokens: true }, exact }
    }
}

impl<T: Element> Search<'_, T> {
    /// Runs the search on the device, if it is one for that. Whether what the device found is
    /// enough: if not, the search is as it was.
    pub(super) fn run_driven(&mut self) -> Result<bool> {
        match self.drive()? {
            Some(found) if self.show_found(&found)? => {
                self.rescore_all()?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Enqueues everything behind the scan, and reads what was found; `None` where the search is
    /// not for that.
    fn drive(&self) -> Result<Option<Found>> {
        let Scanned::Device { device, work: scan, documents: layout, scores } = &self.scanned
        else {
            return Ok(None);
        };
        let (Some([queries, documents]), On::Cuda(cuda)) = (self.rescorer.handles(), &device.0)
        else {
            return Ok(None);
        };
        let (n_candidates, is_exact) = (self.new.options.n_candidates, self.new.options.exact);
        let is_driven = self.bounds.n_queries() == 1
            && self.new.k > 0
            && self.bounds.n_documents() <= DOCUMENTS_MAX as usize
            && n_candidates <= CANDIDATES_MAX as usize
            && !documents.layout().is_unread()
            && layout.knows_empty_items()
            && Unseen::is_known_by(self.bounds.largest(0));
        if !is_driven {
            return Ok(None);
        }
        let there = self.bounds.there();
        let taken = there.take((device, cuda), &self.bounds, n_candidates)?;
        let Some((terms, mut room)) = taken else { return Ok(None) };
        let top_k = device.prepare_top_k(&**scan, layout, n_candidates)?;
        let best = top_k.new_unfilled()?;
        let selection = Selection { first_id: 0, adds: false };
        let select = enqueued(device, top_k.command(device, scores, &best, selection)?)?;
        let [_, n_items, n_room] = room.sizes();
        let addresses = room.items();
        let (cross, options) = (Pairing::cross(), ScoreOptions::default());
        let items_at = |n_items, segments| {
            let items = documents.as_items_at(unread(documents.layout(), n_items)?, segments)?;
            let work = device.prepare_cached(queries, &items, &cross, &options)?;
            let scores = work.new_unfilled()?;
            Ok((items, work, scores))
        };
        let (items, work, rescored) = items_at(n_items, addresses[0])?;
        let rescore = enqueued(device, work.command(device, queries, &items, &rescored)?)?;
        let more = is_exact.then(|| items_at(n_room, addresses[1])).transpose()?;
        let rescore_more = match &more {
            Some((items, work, scores)) => {
                Some(enqueued(device, work.command(device, queries, items, scores)?)?)
            }
            None => None,
        };
        let (On::Cuda(of_scan), On::Cuda(keys), On::Cuda(outputs)) =
            (&scores.inner, &best.inner, &rescored.inner)
        else {
            return Ok(None);
        };
        let call = SearchCall {
            scores: of_scan,
            documents: documents.cuda_tokens()?,
            factors: self.bounds.linear(0).factors,
            largest: self.bounds.largest(0),
            k: self.new.k,
            is_exact,
        };
        let outputs_more = more.as_ref().and_then(|(_, _, scores)| outputs_of(scores));
        let (rows, exact) = cuda.on_idle_stream(|stream| {
            select.enqueue(stream)?;
            room.enqueue_candidates(stream, &call, keys, &terms)?;
            rescore.enqueue(stream)?;
            room.enqueue_reaching(stream, &call, keys, &terms, outputs)?;
            if let Some(rescore) = rescore_more {
                rescore.enqueue(stream)?;
            }
            room.read(stream, outputs_more)
        })?;
        there.put(device, Some(room), rows.first().map_or(0, |row| row[0] as usize));
        Ok(Some(Found { rows, n_candidates, scores: exact }))
    }

    /// Shows the search what was found, with its scores. Whether that is all that may change the
    /// ranking, and everything about it is known; if not, nothing is shown.
    pub(super) fn show_found(&mut self, found: &Found) -> Result<bool> {
        let Some((&[n_found, n_nan, n_empty, _], rows)) = found.rows.split_first() else {
            return Ok(false);
        };
        let (candidates, others) = rows.split_at(found.n_candidates.min(rows.len()));
        let Some(others) = others.get(..n_found as usize).filter(|_| n_nan == 0) else {
            return Ok(false);
        };
        let is_some = |row: &&[u32; 4]| row[0] != NO_DOCUMENT;
        let candidates = candidates.iter().take_while(is_some).copied().map(Scored::of_row);
        let candidates: Vec<Scored> = candidates.collect();
        let is_known = |of: &Scored| of.candidate.score.is_finite() && of.exact.is_finite();
        if !candidates.iter().all(is_known) {
            return Ok(false);
        }
        let Some(&last) = candidates.last() else { return Ok(false) };
        let search = &mut self.searches[0];
        for &id in if n_empty > 0 { self.bounds.empty() } else { &[] } {
            search.push(Candidate { id, score: 0.0, bound: 0.0, has_tokens: false });
        }
        search.give_candidates(&candidates)?;
        let Candidate { id, score, has_tokens, .. } = last.candidate;
        let last = Ranked { id, score, has_tokens };
        if search.is_above(Unseen { last, largest: self.bounds.largest(0) }.most()) {
            return Ok(true);
        }
        let room = found.scores.len() as u32;
        let others = (0u32..).zip(others).map(|(place, &row)| {
            let exact = found.scores.get(item_of(place, n_found, room) as usize);
            (Scored::of_row(row).candidate, exact.copied())
        });
        search.give_others(others)?;
        Ok(true)
    }
}

impl Shortlist {
    /// Takes all candidates, which were re-scored with the scan: as if they had been pushed, named
    /// and given. One pass, since a search ends with it.
    fn give_candidates(&mut self, scored: &[Scored]) -> Result<()> {
        for &Scored { candidate, exact } in scored {
            match Bounded::of(candidate) {
                Some(document) => self.take_score(document, exact)?,
                None => self.push(candidate),
            }
        }
        self.is_scanned = true;
        Ok(())
    }

    /// Takes documents beside the candidates, re-scored where they have a score: that of those
    /// which may come before the k-th of the candidates. The others wait. Where the score is lower
    /// than the k-th, which most are, the document is counted and not kept: the end of a search
    /// looks at a hundred documents then, and not at a thousand.
    fn give_others(
        &mut self,
        others: impl Iterator<Item = (Candidate, Option<f32>)>,
    ) -> Result<()> {
        let kth = self.kth().filter(|_| self.options.exact);
        for (candidate, exact) in others {
            let wanted = Bounded::of(candidate).filter(|document| {
                kth.is_some_and(|kth| document.best().rank(&kth) == Ordering::Less)
            });
            match (wanted, exact) {
                (Some(document), Some(exact)) if kth.is_some_and(|kth| exact < kth.score) => {
                    document.check_score(exact)?;
                    self.n_behind += 1;
                }
                (Some(document), Some(exact)) => self.take_score(document, exact)?,
                _ => self.push(candidate),
            }
        }
        Ok(())
    }
}

/// The call of a command on a CUDA device.
fn enqueued<'a>(device: &Device, command: Command<'a>) -> Result<CudaCommand<'a>> {
    match command.call {
        On::Cuda(call) => Ok(call),
        On::Cpu(_) => Err(device.wrong_queue()),
    }
}

/// The scores on a CUDA device.
fn outputs_of(scores: &DeviceScores) -> Option<&CudaOutputs> {
    match &scores.inner {
        On::Cuda(outputs) => Some(outputs),
        On::Cpu(_) => None,
    }
}
