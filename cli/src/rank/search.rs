//! Ranks by the library's search over documents that pass by, which keeps the link to a GPU busy
//! and selects the best where the scores are.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, ensure};
use maxsim::format::{Element, with_format};
use maxsim::streaming::{Source, StreamOptions};
use maxsim::{Error, TokenLayout};

use crate::documents::Documents;
use crate::finite::Checked;
use crate::input::{Change, TokenFile};
use crate::rank::stream::{Calls, Outcome, Request, first_chunk_bytes};
use crate::selection::Selected;

/// Most documents that a GPU selects.
const K_MAX: usize = 4096;

/// Buffers that are on the device at once, and one for scores and what else a search has there.
const N_BUFFERS: u64 = 4;

/// Why a run cannot be ranked so, for messages.
pub(super) fn refusal(
    documents: &Documents<'_>,
    selected: &Selected,
    top_k: usize,
    allow_infinite: bool,
) -> Option<&'static str> {
    match documents {
        Documents::Tokens(file) if file.contents().format.element().is_some() => {}
        _ => return Some("compressed documents are ranked by one GPU"),
    }
    if *selected != Selected::All {
        return Some("candidates and parts of the documents are ranked by one GPU");
    }
    if top_k.min(documents.n_items()) > K_MAX {
        return Some("more than 4096 documents of a query are listed by one GPU");
    }
    allow_infinite.then_some("--allow-infinite is for one GPU")
}

/// Ranks all documents for all queries. `None` where another way has to be taken: for documents
/// that are not elements, parts of them, rankings that are too long for a GPU, too little memory,
/// and where a score may be beyond f32, which this search would not see.
///
/// # Errors
/// Where elements of documents are not finite, and where the file has changed.
pub fn rank(request: &Request<'_>) -> Result<Option<Outcome>> {
    let Request { documents: all, selected, top_k, allow_infinite, .. } = *request;
    let Documents::Tokens(documents) = all else { return Ok(None) };
    let is_empty = documents.n_items() == 0 || request.queries.n_items() == 0;
    if is_empty || refusal(all, selected, top_k, allow_infinite).is_some() {
        return Ok(None);
    }
    with_format!(documents.contents().format, {
        element T => of_elements::<T>(request, documents),
        _ => Ok(None),
    })
}

fn of_elements<T: Element>(
    request: &Request<'_>,
    documents: &TokenFile,
) -> Result<Option<Outcome>> {
    let queries = request.queries.tokens::<T>(0..request.queries.n_items())?;
    let source = Rows {
        documents: Checked::new(documents, "document", false),
        file: documents,
        largest: AtomicU32::new(0),
        error: Mutex::new(None),
    };
    let (progress, n_queries) = (request.progress.clone(), queries.layout().n_items() as u64);
    let buffer_bytes = match request.chunk_bytes {
        Some(bytes) => bytes,
        None => first_chunk_bytes(None, request.device)? / N_BUFFERS,
    };
    let options = StreamOptions::default()
        .score(request.options.clone())
        .buffer_bytes(buffer_bytes)
        .progress(move |done| progress.set_position(done.documents * n_queries));
    let (device, k) = (request.device, request.top_k);
    let found = match request.devices {
        Some(all) => all.search_stream::<T, T>(&queries, &source, k, &options),
        None => device.search_stream::<T, T>(&queries, &source, k, &options),
    };
    let found = match found {
        Ok(found) => found,
        Err(Error::DeviceMemory { .. }) if request.devices.is_none() => return Ok(None),
        Err(error) => return Err(source.error().unwrap_or(error.into())),
    };
    let largest = T::largest_magnitude(queries.data());
    let may_overflow = source.may_overflow(queries.layout(), largest);
    if may_overflow || found.rankings.iter().any(|ranking| ranking.n_nan > 0) {
        ensure!(
            request.devices.is_none(),
            "--device cuda:all: scores may be beyond f32; use --device cuda:N, which looks at each"
        );
        return Ok(None);
    }
    let calls = Calls { kernels: found.kernels, n_chunks: found.n_chunks };
    Ok(Some(Outcome { rankings: found.rankings, calls, search: None, winners: None }))
}

/// Rows of a file, checked when they are read.
struct Rows<'a> {
    documents: Checked<'a>,
    file: &'a TokenFile,
    /// Bits of the largest magnitude of what was read.
    largest: AtomicU32,
    /// The first error, with all that it says.
    error: Mutex<Option<anyhow::Error>>,
}

impl Rows<'_> {
    fn read<T: Element>(&self, rows: Range<usize>, to: &mut [T]) -> Result<()> {
        self.file.check_unchanged(Change::Content)?;
        to.copy_from_slice(&self.documents.rows_here::<T>(rows)?);
        // Bits of numbers of 0 and more have their order.
        self.largest.fetch_max(T::largest_magnitude(to).to_bits(), Ordering::Relaxed);
        Ok(())
    }

    fn error(&self) -> Option<anyhow::Error> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether a score of queries of a largest magnitude may be beyond f32.
    fn may_overflow(&self, queries: &TokenLayout, largest: f32) -> bool {
        let of_documents = f32::from_bits(self.largest.load(Ordering::Relaxed));
        let similarity = queries.dim() as f64 * f64::from(largest) * f64::from(of_documents);
        let most = similarity * queries.max_len() as f64;
        // Padding may be anything, so that this may be too careful.
        most.is_nan() || most >= f64::from(f32::MAX) / 2.0
    }
}

impl<T: Element> Source<T> for Rows<'_> {
    fn layout(&self) -> &TokenLayout {
        self.file.layout()
    }

    fn fill(&self, rows: Range<usize>, to: &mut [T]) -> io::Result<()> {
        self.read(rows, to).map_err(|error| {
            let said = io::Error::other(error.to_string());
            self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            said
        })
    }
}
