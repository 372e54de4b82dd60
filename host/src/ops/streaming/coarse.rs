//! Coarse to fine over documents that pass by: a scan of their codes selects candidates, which are
//! read by id and scored in full precision, until every place is proven or likely.

#[cfg(test)]
mod tests;

use std::sync::Mutex;

use rayon::iter::{IndexedParallelIterator, IntoParallelRefMutIterator, ParallelIterator};

use super::corpus::{Corpus, Passed};
use super::options::{StreamOptions, StreamStage};
use super::search_source::SearchSource;
use super::{Passage, merged};
use crate::cuda::{Kept, StreamFound};
use crate::device::Device;
use crate::device::tokens::TokensRef;
use crate::error::Result;
use crate::ops::devices::Devices;
#[cfg(doc)]
use crate::ops::search::Certainty;
use crate::ops::search::bounds::ErrorTerms;
use crate::ops::search::compressed::SearchTokens;
use crate::ops::search::pair_bounds::PairBounds;
use crate::ops::search::{Candidate, SearchOptions, SearchRanking, Shortlist};
use crate::problem::chunks::{Chunk, shares};
use crate::problem::options::ScoreOptions;
use crate::problem::pairing::Pairing;
use crate::problem::top_k::{BestKeys, K_MAX};
use crate::runtime::pool::Parallel;
use crate::runtime::swap::{into_inner, lock};
use crate::tokens::Tokens;
use crate::tokens::element::Element;
use crate::tokens::format::{Format, ScorableWith};
use crate::tokens::streamed::Streamed;
use crate::tokens::streamed::subset::Subset;

/// Documents of each query that a GPU selects from a scan, where there are at least four times as
/// many: the scores of all others stay where they are.
const SELECTED: usize = K_MAX;

/// What a search coarse to fine over documents that pass by has found.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[must_use]
pub struct SearchFound {
    /// Per query its best documents, each with the certainty of its place.
    pub rankings: Vec<SearchRanking>,
    /// The kernels that ran, in the order of their first use, or `cpu`.
    pub kernels: Vec<&'static str>,
    /// Chunks of codes that were scanned, and batches of documents that were scored again.
    pub n_chunks: usize,
    /// Bytes of the rows that were read.
    pub bytes: u64,
}

impl Device {
    /// The best `k` documents of each query, with every place proven or likely, of a corpus of
    /// which neither codes nor tokens fit anywhere: codes pass by as documents of
    /// [`Device::search_stream`] do, and what they find is read by id from the source of the tokens
    /// and scored in full precision. See [`Shortlist`] for what is proven and how many documents it
    /// takes.
    ///
    /// The ranking is that of [`Device::search`]. On a GPU, where terms of all documents are known
    /// ([`SearchSource::measured`], [`SearchSource::known`]), 4096 documents of each query are
    /// selected where the scores are, and no other document's score is more than the least of
    /// theirs plus the largest bound. What that proves takes one pass; where it does not prove what
    /// [`SearchOptions::exact`](field@SearchOptions::exact) asks for, codes pass by once more, for
    /// the queries that need it, and all scores are looked at. Without `exact` there is no second
    /// pass, and places may be [`Certainty::Likely`] that [`Device::search`] proves.
    ///
    /// [`StreamOptions::score`](field@StreamOptions::score) is for the scan; documents are scored
    /// again with the default [`ScoreOptions`], which the bounds count with.
    /// [`StreamOptions::progress`] is called in both [stages](crate::streaming::StreamStage).
    ///
    /// ```
    /// use maxsim::format::{Int8, ScaleType};
    /// use maxsim::search::{Certainty, SearchFound, SearchOptions, SearchSource, SearchTokens};
    /// use maxsim::streaming::{StreamOptions, StreamStage};
    /// use maxsim::{Device, Tokens};
    ///
    /// let queries = Tokens::padded(&[1.0f32, 0.0], 1, 1, 2)?;
    /// let tokens = Tokens::padded(&[0.6f32, 0.8, 0.96, 0.28, 0.0, 1.0], 3, 1, 2)?;
    /// let query_codes = queries.quantize::<Int8>(ScaleType::F32)?;
    /// let codes = tokens.quantize::<Int8>(ScaleType::F16)?;
    /// let queries = SearchTokens::measured(&queries, &query_codes)?;
    /// let documents = SearchSource::measured(&tokens, &codes)?;
    ///
    /// let search = SearchOptions::default().n_candidates(2).exact(true);
    /// let options = StreamOptions::default().progress(|done| match done.stage {
    ///     StreamStage::Scan => println!("{} of {} documents", done.documents, done.n_documents),
    ///     _ => println!("{} of {} scored again", done.documents, done.n_documents),
    /// });
    /// let device = Device::best();
    /// let found: SearchFound =
    ///     device.search_coarse_stream(&queries, &documents, 1, &search, &options)?;
    /// let best = &found.rankings[0].documents[0];
    /// assert_eq!((best.id, best.score, best.certainty), (1, 0.96, Certainty::Proven));
    /// assert_eq!(found.rankings[0].n_rescored, 2);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Source`](crate::Error::Source) where a source fails,
    /// [`Error::Interrupted`](crate::Error::Interrupted) where an
    /// [`Interrupt`](crate::Interrupt) that this call heeds is raised.
    /// [`Error::Shape`](crate::Error::Shape) where a score is further from that of the codes than
    /// errors reach ([`Shortlist::rescored`]): the codes are not those of the tokens. Those of
    /// [`Device::score_with`]. After each of them the next call works.
    pub fn search_coarse_stream<T: Element, Q: ScorableWith<D>, D: Format>(
        &self,
        queries: &SearchTokens<'_, T, Q>,
        documents: &SearchSource<'_, T, D>,
        k: usize,
        search: &SearchOptions,
        options: &StreamOptions,
    ) -> Result<SearchFound> {
        let devices = std::slice::from_ref(self);
        CoarseSearch::new(devices, queries, documents, k, *search, options).run()
    }
}

impl Devices {
    /// As [`Device::search_coarse_stream`]: each device scans some consecutive documents, and reads
    /// some of what is scored again. Queries are in host memory.
    ///
    /// ```no_run
    /// use maxsim::format::Int8;
    /// use maxsim::half::f16;
    /// use maxsim::search::{SearchFound, SearchOptions, SearchSource, SearchTokens};
    /// use maxsim::streaming::StreamOptions;
    /// use maxsim::{Devices, Result};
    ///
    /// /// The best ten of a corpus, proven, on all GPUs.
    /// fn search(
    ///     queries: &SearchTokens<'_, f16, Int8>,
    ///     corpus: &SearchSource<'_, f16, Int8>,
    /// ) -> Result<SearchFound> {
    ///     let search = SearchOptions::default().exact(true);
    ///     let options = StreamOptions::default();
    ///     Devices::all().search_coarse_stream(queries, corpus, 10, &search, &options)
    /// }
    /// ```
    ///
    /// # Errors
    /// Those of [`Device::search_coarse_stream`], from whichever device.
    pub fn search_coarse_stream<T: Element, Q: ScorableWith<D>, D: Format>(
        &self,
        queries: &SearchTokens<'_, T, Q>,
        documents: &SearchSource<'_, T, D>,
        k: usize,
        search: &SearchOptions,
        options: &StreamOptions,
    ) -> Result<SearchFound> {
        CoarseSearch::new(self.devices(), queries, documents, k, *search, options).run()
    }
}

/// Shortlists of some queries, with these.
type Lists = Vec<(u32, Shortlist)>;

/// A search, and what its stages share.
struct CoarseSearch<'a, T: Element, Q: Format, D: Format> {
    devices: &'a [Device],
    queries: &'a SearchTokens<'a, T, Q>,
    documents: &'a SearchSource<'a, T, D>,
    options: &'a StreamOptions,
    passage: Passage<'a>,
    /// A shortlist that has seen nothing.
    new: Shortlist,
    exact: bool,
    /// Whether both sides' terms are taken to be true.
    is_known: bool,
    /// How many documents of each query are selected; `None` where all scores are looked at.
    selected: Option<usize>,
}

impl<'a, T: Element, Q: ScorableWith<D>, D: Format> CoarseSearch<'a, T, Q, D> {
    fn new(
        devices: &'a [Device],
        queries: &'a SearchTokens<'a, T, Q>,
        documents: &'a SearchSource<'a, T, D>,
        k: usize,
        search: SearchOptions,
        options: &'a StreamOptions,
    ) -> Self {
        let is_known = queries.is_known && documents.is_known;
        let is_worth_it = documents.layout.n_items() / 4 >= SELECTED;
        let is_enough = search.n_candidates.max(k) <= SELECTED;
        let is_on_gpu = devices[0].ordinal().is_some();
        CoarseSearch {
            devices,
            queries,
            documents,
            options,
            passage: Passage::new(devices, options),
            new: Shortlist::new(k, search),
            exact: search.exact,
            is_known,
            // What is only assumed may have scores of codes that no bound knows of.
            selected: (is_on_gpu && is_worth_it && is_enough && is_known).then_some(SELECTED),
        }
    }

    fn run(self) -> Result<SearchFound> {
        let n_queries = self.queries.tokens.layout().n_items() as u32;
        let mut done = Lists::new();
        if let (Some(selected), Some(terms)) = (self.selected, &self.documents.terms) {
            let mut lists = self.scan_selected(selected, terms)?;
            self.rescore(&mut lists)?;
            lists.retain_mut(|(_, list)| !self.exact || list.is_proven());
            done = lists;
        }
        // Both rise.
        let mut proven = done.iter().map(|(query, _)| *query).peekable();
        let rest: Vec<u32> =
            (0..n_queries).filter(|query| proven.next_if_eq(query).is_none()).collect();
        if !rest.is_empty() || n_queries == 0 {
            let mut lists = self.scan_all(&rest)?;
            self.rescore(&mut lists)?;
            done.extend(lists);
            done.sort_unstable_by_key(|(query, _)| *query);
        }
        let done = done.into_iter();
        let rankings = done.map(|(_, list)| list.into_ranking_if(self.is_known)).collect();
        let (kernels, n_chunks, bytes) = self.passage.into_parts();
        Ok(SearchFound { rankings, kernels, n_chunks, bytes })
    }

    /// Shows the documents that a scan scores best to the shortlist of each query, and what the
    /// others can be. Queries are left out where that is not known.
    fn scan_selected(&self, selected: usize, terms: &ErrorTerms) -> Result<Lists> {
        let (codes, kept) = (self.queries.codes, Kept::Best(selected));
        let documents = &self.documents.codes;
        let found =
            self.passage.scan::<Q, _>(codes.layout(), documents, |device, chunks, passed| {
                device.search_chunks(codes, documents, chunks, kept, self.options, passed)
            })?;
        let rankings = merged(found, codes.layout().n_items(), selected)?.rankings();
        let bounds = PairBounds::of_rescored(self.queries.terms(), terms, T::TYPE);
        let mut lists = Lists::new();
        for (query, ranking) in rankings.iter().enumerate() {
            let mut list = self.new.clone();
            let Some(unseen) = bounds.show(query, ranking, &mut list) else { continue };
            if let Some(unseen) = unseen {
                list.pass_others(unseen.most());
            }
            lists.push((query as u32, list));
        }
        Ok(lists)
    }

    /// Shows all documents to the shortlists of some queries.
    fn scan_all(&self, queries: &[u32]) -> Result<Lists> {
        let lists = queries.iter().map(|&query| (query, self.new.clone())).collect();
        let scan = Scan { search: self, lists: Mutex::new(lists) };
        let (codes, documents) = (self.queries.codes, &self.documents.codes);
        self.passage.scan::<Q, _>(
            codes.layout(),
            documents,
            |device, chunks, passed| match device.ordinal() {
                None => scan.on_cpu(device, chunks, passed),
                Some(_) => {
                    let take = |chunk: &Chunk, scores: &[f32]| scan.take(chunk, scores, None);
                    let kept = Kept::Scores(&take);
                    device.search_chunks(codes, documents, chunks, kept, self.options, passed)
                }
            },
        )?;
        Ok(into_inner(scan.lists))
    }

    /// Scores in full precision what shortlists want, until that is nothing.
    fn rescore(&self, lists: &mut [(u32, Shortlist)]) -> Result<()> {
        loop {
            // Documents, and the places of their queries' lists.
            let mut wanted: Vec<[u32; 2]> = (0u32..)
                .zip(&mut *lists)
                .flat_map(|(place, (_, list))| list.wanted().into_iter().map(move |d| [d, place]))
                .collect();
            if wanted.is_empty() {
                return Ok(());
            }
            wanted.sort_unstable();
            let mut ids: Vec<u32> = wanted.iter().map(|&[document, _]| document).collect();
            ids.dedup();
            self.passage.begin(StreamStage::Rescore, wanted.len() as u64);
            let layout = self.documents.tokens.layout;
            let lengths = ids.iter().map(|&id| layout.item_len(id as usize));
            let parts = shares(lengths, self.devices.len());
            let queries: Vec<u32> = lists.iter().map(|(query, _)| *query).collect();
            let found = self.passage.on_each(&parts, |device, part| {
                self.score_wanted(device, &ids[part], &wanted, &queries)
            })?;
            for (&[document, place], score) in wanted.iter().zip(found.into_iter().flatten()) {
                lists[place as usize].1.rescored(document, score)?;
            }
        }
    }

    /// Scores of the pairs of some documents, `ids`, among all that are wanted; both rise.
    fn score_wanted(
        &self,
        device: &Device,
        ids: &[u32],
        wanted: &[[u32; 2]],
        queries: &[u32],
    ) -> Result<Vec<f32>> {
        let (some, exactly) =
            (Subset::new(self.documents.tokens.source(), ids)?, ScoreOptions::default());
        let documents = Streamed::<T>::new(&some)?;
        let mut own = None;
        let of_queries = match device.ordinal() {
            None => self.queries.tokens,
            Some(_) => TokensRef::Device(self.queries.tokens.on(device, &mut own)?),
        };
        let mut scores = Vec::new();
        let row_bytes = documents.layout.dim() * size_of::<T>();
        for chunk in device.chunks_of::<T, _>(of_queries.layout(), &documents, self.options) {
            self.passage.check()?;
            let ids = &ids[chunk.items.clone()];
            let [first, last] = [ids[0], ids[ids.len() - 1]];
            let start = wanted.partition_point(|&[document, _]| document < first);
            let end = wanted.partition_point(|&[document, _]| document <= last);
            let (mut query_ids, mut places) = (Vec::new(), Vec::new());
            let mut place = 0;
            for &[document, list] in &wanted[start..end] {
                // Each is wanted by some query.
                while ids[place as usize] < document {
                    place += 1;
                }
                query_ids.push(queries[list as usize]);
                places.push(place);
            }
            let pairs = Pairing::pairs(&query_ids, &places)?;
            documents.with_part(device, chunk.items, &mut |score| {
                let (kernel, found) = score(of_queries, &pairs, &exactly)?;
                scores.extend_from_slice(found.values());
                self.passage.note(&[kernel], 1);
                Ok(())
            })?;
            let bytes = (chunk.rows.len() * row_bytes) as u64;
            self.passage.count(places.len(), places.len(), bytes)?;
        }
        Ok(scores)
    }
}

/// A scan whose scores are all shown to shortlists.
struct Scan<'s, 'a, T: Element, Q: Format, D: Format> {
    search: &'s CoarseSearch<'a, T, Q, D>,
    lists: Mutex<Lists>,
}

impl<T: Element, Q: ScorableWith<D>, D: Format> Scan<'_, '_, T, Q, D> {
    /// Scans chunks on the CPU, whose codes are read once.
    fn on_cpu(&self, device: &Device, chunks: &[Chunk], passed: Passed<'_>) -> Result<StreamFound> {
        let CoarseSearch { queries, documents, options, .. } = self.search;
        let (codes, score) = (&documents.codes, options.score_alone());
        device.check_search(queries.codes, codes, &score)?;
        let mut memory = Vec::new();
        for chunk in chunks {
            let part = codes.part(chunk.items.clone(), &mut memory)?;
            let scores = device.score_with(queries.codes, &part, &Pairing::cross(), &score)?;
            self.take(chunk, scores.values(), Some(&part))?;
            passed(chunk, 0..queries.codes.layout().n_items())?;
        }
        let kernels = if chunks.is_empty() { vec![] } else { vec!["cpu"] };
        Ok(StreamFound { best: BestKeys::new(0, 0)?, kernels })
    }

    /// Takes the scores of a chunk, with its codes where they are there.
    fn take(&self, chunk: &Chunk, scores: &[f32], codes: Option<&Tokens<'_, D>>) -> Result<()> {
        let CoarseSearch { queries, documents, .. } = self.search;
        let mut memory = Vec::new();
        let own;
        let (terms, first) = match (&documents.terms, codes) {
            (Some(terms), _) => (&**terms, 0),
            (None, Some(codes)) => {
                own = ErrorTerms::new(codes);
                (&own, chunk.items.start)
            }
            (None, None) => {
                own = ErrorTerms::new(&documents.codes.part(chunk.items.clone(), &mut memory)?);
                (&own, chunk.items.start)
            }
        };
        let bounds = PairBounds::of_rescored(queries.terms(), terms, T::TYPE);
        let n = chunk.items.len();
        let show = |(query, list): &mut (u32, Shortlist)| {
            let query = *query as usize;
            for (id, &score) in chunk.items.clone().zip(&scores[query * n..(query + 1) * n]) {
                let has_tokens = documents.layout.has_tokens(id);
                let bound = bounds.of(query, id - first);
                // A layout has fewer than 2³¹ items.
                list.push(Candidate { id: id as u32, score, bound, has_tokens });
            }
        };
        each_list(&mut lock(&self.lists), &show);
        Ok(())
    }
}

/// Does `each` with every list. Not of any types, so that programs have it once.
fn each_list(lists: &mut [(u32, Shortlist)], each: &(dyn Fn(&mut (u32, Shortlist)) + Sync)) {
    Parallel::new().share(|min_len| lists.par_iter_mut().with_min_len(min_len).for_each(each));
}
