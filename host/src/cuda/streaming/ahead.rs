//! What a chunk needs to be scored, made while the chunks before it are copied.

use std::sync::Arc;

use super::slots::Memory;
use crate::cuda::buffers::outputs::CudaOutputs;
use crate::cuda::buffers::tokens::CudaTokens;
use crate::cuda::calls::{Kept, StreamCall, StreamedRows};
use crate::cuda::driver::context::CudaDevice;
use crate::cuda::driver::memory::Buffer;
use crate::cuda::forward::plan::ForwardPlan;
use crate::cuda::top_k::CudaTopKWork;
use crate::error::{Error, Result};
use crate::plan::choice::Plan;
use crate::plan::limits::{Access, ResidualAddresses};
use crate::problem::Problem;
use crate::problem::outputs::OutputShape;
use crate::problem::pairing::Pairing;
use crate::problem::top_k::RankedRows;
use crate::tokens::format::TokenFormat;
use crate::tokens::layout::TokenLayout;
use crate::tokens::streamed::items_of;

/// A chunk made ready: its documents as they will lie in their slot, and the work on them.
#[derive(Debug)]
pub(super) struct Ready {
    pub tokens: CudaTokens,
    pub score: ForwardPlan,
    pub outputs: CudaOutputs,
    /// Shape of the outputs.
    pub shape: OutputShape,
    /// The selection of the best, where not all scores are read.
    pub select: Option<CudaTopKWork>,
    pub kernel: &'static str,
}

impl Ready {
    /// Plans the chunk of a number by itself: what is chosen does not depend on those beside it.
    pub fn new(
        device: &Arc<CudaDevice>,
        call: &StreamCall<'_>,
        memory: &Memory,
        tables: Option<&[Buffer; 2]>,
        number: usize,
    ) -> Result<Ready> {
        let chunk = call.chunks[number].items.clone();
        let (_, layout) = items_of(call.documents.layout(), call.documents.mask(), chunk)?;
        let tokens = tokens(device, call, memory, tables, (number, &layout))?;
        let format = match call.rows {
            StreamedRows::Stored(format, _) => format,
            StreamedRows::Residual(element, ..) => TokenFormat::Residual(element),
        };
        let cross = Pairing::cross();
        let problem = Problem::new(call.query_layout, &layout, &cross)?;
        let unsupported = || Error::Unsupported {
            what: format!("{} queries and {format} documents", call.query_format),
            why: "no kernel takes them; use Device::cpu()".into(),
        };
        let operand = TokenFormat::operand(call.query_format, format).ok_or_else(unsupported)?;
        let accesses = [call.queries.access(), tokens.access()];
        let plan = Plan::choose(&problem, operand, device.limits(), accesses, call.options)?;
        let chosen = plan.chosen().ok_or_else(unsupported)?;
        let shape = OutputShape::new(&problem, call.options);
        let select = match call.kept {
            Kept::Best(k) => Some(CudaTopKWork::new(device, &RankedRows::new(&problem)?, k, None)?),
            Kept::Scores(_) => None,
        };
        Ok(Ready {
            tokens,
            score: ForwardPlan::new(device, &problem, chosen, &shape)?,
            outputs: memory.scores(number).part([0; 3], shape.lens_bytes()),
            shape,
            select,
            kernel: plan.name(),
        })
    }
}

/// The documents of a chunk as they will lie in their slot.
fn tokens(
    device: &Arc<CudaDevice>,
    call: &StreamCall<'_>,
    memory: &Memory,
    tables: Option<&[Buffer; 2]>,
    (number, layout): (usize, &TokenLayout),
) -> Result<CudaTokens> {
    let (places, base) = (&memory.places, memory.slot(number).memory.address());
    let mask = call.documents.mask().map_or(0, |_| base + places.mask_at as u64);
    let words = base + places.words_at as u64;
    match call.rows {
        StreamedRows::Stored(format, _) => {
            let pitch_bytes = places.pitch_bytes as u64;
            let access = Access { base, pitch_bytes, n_centroids: 0 };
            let operand = format.stored_operand();
            let tokens = CudaTokens::new(device, operand, layout, access, mask, Vec::new())?;
            if call.documents.has_words() {
                tokens.set_scale_words(words, format);
            }
            Ok(tokens)
        }
        StreamedRows::Residual(element, codec, _) => {
            let [centroids, weights] =
                tables.map_or([0; 2], |tables| tables.each_ref().map(Buffer::address));
            let norms = if codec.normalize() { base + places.norms_at as u64 } else { 0 };
            let addresses =
                ResidualAddresses { codes: words, residuals: base, centroids, weights, norms };
            let tables = (codec.nbits(), codec.n_centroids());
            CudaTokens::view_residual(device, element, layout, addresses, tables, [mask, 0])
        }
    }
}
