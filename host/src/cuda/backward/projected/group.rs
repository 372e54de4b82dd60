//! Documents whose slots are multiplied together, with their plan and lists.

use std::sync::Arc;

use maxsim_kernels::abi::params::projection::gradient::{
    CHOOSE_ROWS_MAX, ChooseParams, ChosenDocument, ChosenPair, words,
};

use super::memory::Addresses;
use crate::cuda::backward::CudaBackward;
use crate::cuda::buffers::gradients::{CudaGradScores, CudaGradients};
use crate::cuda::buffers::outputs::CudaOutputs;
use crate::cuda::buffers::tokens::CudaTokens;
use crate::cuda::calls::{ProjectionCall, SlotsCall};
use crate::cuda::driver::context::CudaDevice;
use crate::cuda::driver::memory::Buffer;
use crate::cuda::driver::staging::upload_lists;
use crate::cuda::forward::projection::Projecting;
use crate::error::Result;
use crate::plan::backward::{BackwardKind, Gathered};
use crate::plan::limits::Access;
use crate::problem::options::ScoreOptions;
use crate::problem::outputs::{GradientMatrix, OutputAddresses, OutputShape, Trust};
use crate::tokens::element::ElementType;
use crate::tokens::format::TokenFormat;
use crate::tokens::layout::TokenLayout;

/// Documents whose slots are multiplied together.
#[derive(Debug)]
pub(super) struct Group {
    pub choose: ChooseParams,
    pub n_documents: u32,
    pub states: Arc<CudaTokens>,
    pub projecting: Projecting,
    pub backward: CudaBackward,
    pub outputs: CudaOutputs,
    pub grad_scores: CudaGradScores,
    pub gradients: CudaGradients,
    /// The documents and pairs that `choose` reads.
    _lists: Buffer,
}

impl Group {
    pub(super) fn new(
        device: &Arc<CudaDevice>,
        projection: &ProjectionCall<'_>,
        call: &SlotsCall<'_>,
        at: &Addresses,
        [n_hidden, n_weights]: [usize; 2],
    ) -> Result<Group> {
        let SlotsCall { problem, n_slots, documents, pairs } = call;
        let (element, dim) = (projection.element, problem.dim());
        let documents_words: Vec<_> = documents.iter().map(document_words).collect();
        let pairs_words: Vec<_> = pairs.iter().map(pair_words).collect();
        let all: [&[u8]; 2] =
            [bytemuck::cast_slice(&pairs_words), bytemuck::cast_slice(&documents_words)];
        let (lists, [pairs_at, documents_at]) = upload_lists(device, all)?;
        let listed = documents.iter().filter(|document| document.n_slots < document.n_rows);
        let longest = listed.map(|document| document.n_rows).max().unwrap_or(0);
        debug_assert!(longest <= CHOOSE_ROWS_MAX);
        let options = ScoreOptions::default().winners(true);
        let shape = OutputShape::new(problem, &options);
        let choose = ChooseParams {
            documents: documents_at,
            pairs: pairs_at,
            grad_scores: 0,
            to_grad_scores: at.grad_scores,
            to_winners: at.winners,
            rows: at.rows,
            winner_bytes: shape.winner_bytes as u32,
            n_words: words(longest),
        };
        let layout = TokenLayout::padded(1, *n_slots, n_hidden)?;
        let access = Access {
            base: at.states,
            pitch_bytes: pitch(n_hidden as u64, element),
            n_centroids: 0,
        };
        let states = CudaTokens::new(device, element, &layout, access, 0, Vec::new())?;
        let states = Arc::new(states);
        let slots =
            ProjectionCall { rows: 0..*n_slots, layout: problem.documents(), ..projection.clone() };
        let kind = BackwardKind {
            gradient: ElementType::F32,
            is_atomic: false,
            normalizes: false,
            angular: false,
            weighted: n_weights > 0,
            documents: Gathered::Elements,
            sides: [true; 2],
        };
        let matrix =
            |address, rows, dim| GradientMatrix { address, element: ElementType::F32, rows, dim };
        let queries = problem.queries().rows();
        let parts = [
            matrix(at.queries, queries, dim),
            matrix(at.gradients, *n_slots, dim),
            matrix(at.query_weights, n_weights, 1),
        ];
        let winners = OutputAddresses { scores: 0, winners: at.winners, token_scores: 0 };
        let n_scores = problem.shape().n_scores();
        // SAFETY: the memory is the work's, which is used by one stream after the other, and is as
        // long as the calls' longest.
        unsafe {
            let trust = Trust::Unchecked;
            Ok(Group {
                choose,
                n_documents: documents.len() as u32,
                projecting: Projecting::new(device, &states, &slots, at.tokens)?,
                states,
                backward: CudaBackward::new(device, problem, element, kind, &shape)?,
                outputs: CudaOutputs::from_raw_parts(device, &shape, winners, trust)?,
                grad_scores: CudaGradScores::from_raw_parts(
                    device,
                    at.grad_scores,
                    n_scores,
                    trust,
                )?,
                gradients: CudaGradients::from_raw_parts(device, parts, trust)?,
                _lists: lists,
            })
        }
    }
}

/// Bytes from a row of `n` elements to the next.
pub(super) fn pitch(n: u64, element: ElementType) -> u64 {
    Access::uploaded(n as usize, TokenFormat::from(element)).pitch_bytes
}

/// A document as the device reads it.
fn document_words(document: &ChosenDocument) -> [u32; 6] {
    let ChosenDocument { first_row, n_rows, slot, n_slots, first_pair, n_pairs } = *document;
    [first_row, n_rows, slot, n_slots, first_pair, n_pairs]
}

/// A pair as the device reads it.
fn pair_words(pair: &ChosenPair) -> [u64; 4] {
    let ChosenPair { winners, to, score, to_score, n_tokens, winner_bytes } = *pair;
    let both = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    [winners, to, both(score, to_score), both(n_tokens, winner_bytes)]
}
