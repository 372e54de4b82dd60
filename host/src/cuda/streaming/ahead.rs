//! What a chunk needs to be scored, made while the chunks before it are copied.

use std::sync::Arc;

use super::slots::Memory;
use crate::cuda::buffers::outputs::CudaOutputs;
use crate::cuda::buffers::tokens::CudaTokens;
use crate::cuda::calls::StreamCall;
use crate::cuda::driver::context::CudaDevice;
use crate::cuda::forward::plan::ForwardPlan;
use crate::cuda::top_k::CudaTopKWork;
use crate::error::{Error, Result};
use crate::plan::choice::Plan;
use crate::plan::limits::Access;
use crate::problem::Problem;
use crate::problem::outputs::OutputShape;
use crate::problem::pairing::Pairing;
use crate::problem::top_k::RankedRows;
use crate::tokens::format::{Format, TokenFormat};

/// A chunk made ready: its documents as they will lie in their slot, and the work on them.
#[derive(Debug)]
pub(super) struct Ready {
    pub tokens: CudaTokens,
    pub score: ForwardPlan,
    pub outputs: CudaOutputs,
    pub select: CudaTopKWork,
    pub kernel: &'static str,
}

impl Ready {
    /// Plans the chunk of a number by itself: what is chosen does not depend on those beside it.
    pub fn new<D: Format>(
        device: &Arc<CudaDevice>,
        call: &StreamCall<'_, D>,
        memory: &Memory,
        number: usize,
    ) -> Result<Ready> {
        let (_, layout) = call.documents.items(call.chunks[number].items.clone())?;
        let (places, base) = (&memory.places, memory.slot(number).memory.address());
        let pitch_bytes = places.pitch_bytes as u64;
        let access = Access { base, pitch_bytes, n_centroids: 0 };
        let mask = call.documents.mask.map_or(0, |_| base + places.mask_at as u64);
        let operand = D::FORMAT.stored_operand();
        let tokens = CudaTokens::new(device, operand, &layout, access, mask, Vec::new())?;
        if call.documents.scales.is_some() {
            tokens.set_scale_words(base + places.scales_at as u64, D::FORMAT);
        }
        let cross = Pairing::cross();
        let problem = Problem::new(call.query_layout, &layout, &cross)?;
        let unsupported = || Error::Unsupported {
            what: format!("{} queries and {} documents", call.query_format, D::FORMAT),
            why: "no kernel takes them; use Device::cpu()".into(),
        };
        let operand = TokenFormat::operand(call.query_format, D::FORMAT).ok_or_else(unsupported)?;
        let accesses = [call.queries.access(), access];
        let plan = Plan::choose(&problem, operand, device.limits(), accesses, call.options)?;
        let chosen = plan.chosen().ok_or_else(unsupported)?;
        let shape = OutputShape::new(&problem, call.options);
        Ok(Ready {
            tokens,
            score: ForwardPlan::new(device, &problem, chosen, &shape)?,
            outputs: memory.scores.part([0; 3], shape.lens_bytes()),
            select: CudaTopKWork::new(device, &RankedRows::new(&problem)?, call.k, None)?,
            kernel: plan.name(),
        })
    }
}
