//! Ranks by the library's search over documents that pass by, which keeps the link to a GPU busy
//! and selects the best where the scores are.

use anyhow::{Result, ensure};
use maxsim::format::{Element, Format, ScorableWith, with_format};
use maxsim::residual::ResidualSource;
use maxsim::streaming::{Source, StreamFound, StreamOptions};
use maxsim::{Device, Devices, Tokens};

use crate::input::TokenFile;
use crate::rank::sides::{self, Call};
use crate::rank::sources::{Found, largest_of_codes};
use crate::rank::stream::{Calls, Outcome, Request};
use crate::selection::Selected;

/// Ranks the documents that are the same for all queries. `None` where another way has to be taken:
/// for candidates, and where a score may be beyond f32, which this search would not see.
///
/// # Errors
/// Where documents are not finite, and where the file has changed.
pub fn rank(request: &Request<'_>) -> Result<Option<Outcome>> {
    let Request { queries, documents, selected, top_k, .. } = *request;
    let is_empty = documents.n_items() == 0 || queries.n_items() == 0;
    if is_empty || matches!(selected, Selected::Each(_)) {
        return Ok(None);
    }
    let (found, options) = (Found::measuring(), request.stream_options()?);
    let call =
        Best { device: request.device, devices: request.devices, options: &options, k: top_k };
    let best = sides::run(request, 0..queries.n_items(), &found, call)?;
    if may_overflow(request, &found)? || best.rankings.iter().any(|ranking| ranking.n_nan > 0) {
        ensure!(
            request.devices.is_none(),
            "--device cuda:all: scores may be beyond f32; use --device cuda:N, which looks at each"
        );
        return Ok(None);
    }
    let mut rankings = best.rankings;
    if let Selected::Same(ids) = selected {
        let ranked = rankings.iter_mut().flat_map(|ranking| &mut ranking.ranked);
        ranked.for_each(|found| found.id = ids[found.id as usize]);
    }
    let calls = Calls { kernels: best.kernels, n_chunks: best.n_chunks };
    Ok(Some(Outcome { rankings, calls, search: None, winners: None }))
}

/// The best documents of each query.
struct Best<'a> {
    device: &'a Device,
    devices: Option<&'a Devices>,
    options: &'a StreamOptions,
    k: usize,
}

impl Call for Best<'_> {
    type Output = StreamFound;

    fn of_rows<Q: ScorableWith<D>, D: Format>(
        self,
        queries: &Tokens<'_, Q>,
        documents: &dyn Source<D>,
    ) -> Result<StreamFound> {
        let Best { device, devices, options, k } = self;
        Ok(match devices {
            Some(devices) => devices.search_stream(queries, &documents, k, options)?,
            None => device.search_stream(queries, &documents, k, options)?,
        })
    }

    fn of_residuals<T: Element>(
        self,
        queries: &Tokens<'_, T>,
        documents: &dyn ResidualSource,
    ) -> Result<StreamFound> {
        let Best { device, devices, options, k } = self;
        Ok(match devices {
            Some(devices) => devices.search_residual_stream(queries, &documents, k, options)?,
            None => device.search_residual_stream(queries, &documents, k, options)?,
        })
    }
}

/// The largest magnitude of a file's elements, or more; NaN where that is not known.
fn largest_of(file: &TokenFile) -> Result<f32> {
    fn of<T: Element>(file: &TokenFile) -> Result<f32> {
        Ok(T::largest_magnitude(file.tokens::<T>(0..file.n_items())?.data()))
    }
    with_format!(file.contents().format, {
        element T => of::<T>(file),
        _ => Ok(largest_of_codes(&file.scales()?, 0..file.layout().rows())),
    })
}

/// Whether a score may be beyond f32, where that is not allowed: of the queries and of documents
/// that were read.
pub(super) fn may_overflow(request: &Request<'_>, found: &Found) -> Result<bool> {
    if request.allow_infinite {
        return Ok(false);
    }
    let queries = request.queries.layout();
    // Codes are multiplied before they are scaled.
    let of_codes = |x: f32| if x < 1.0 { 1.0 } else { f64::from(x) };
    let [of_queries, of_documents] = [largest_of(request.queries)?, found.largest()].map(of_codes);
    let most = queries.dim() as f64 * of_queries * of_documents * queries.max_len() as f64;
    let most = most * request.queries.largest_weight();
    // Padding may be anything, so that this may be too careful.
    Ok(most.is_nan() || most >= f64::from(f32::MAX) / 2.0)
}
