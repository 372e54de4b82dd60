//! Documents that are decoded once per call, before kernels multiply them with many query rows:
//! some at a time, since decoded rows are several times as large as what they are decoded from.
//!
//! A piece's rows lie in the stream's workspace from row 0 on, and their scales behind them: r, or
//! 1. Lists and launches are those of documents that lie there, one piece after the other.

use std::ops::Range;
use std::sync::Arc;

use cust::sys::CUstream;
use maxsim_kernels::abi::element::Operand;
use maxsim_kernels::abi::params::backward::WARPS;
use maxsim_kernels::abi::params::{DecodedRowsParams, Matrix, NORMS_PADDING, Residuals};
use maxsim_kernels::table::auxiliary::DECODED_ROWS;
use maxsim_kernels::table::forward::Variant;

use crate::cuda::buffers::residual::not_decoded;
use crate::cuda::driver::context::{CudaDevice, Entered};
use crate::cuda::driver::launch::start;
use crate::cuda::driver::module::Kernel;
use crate::cuda::driver::tensor_map::{Maps, Rounding};
use crate::cuda::forward::lists::DeviceLists;
use crate::cuda::forward::work_list::Launch;
use crate::error::Result;
use crate::plan::limits::Access;
use crate::plan::pieces::{Piece, decoded_access, pieces, rows_max};
use crate::problem::Problem;
use crate::tokens::layout::TokenLayout;

/// Rows that a warp decodes.
const WARP_ROWS: u32 = 32;

/// Alignment of the scales behind decoded rows.
const SCALES_ALIGN: u64 = 256;

/// A problem whose documents lie where their pieces are decoded to.
#[derive(Debug)]
pub(in crate::cuda) struct DecodedProblem {
    pieces: Vec<Piece>,
    documents: TokenLayout,
}

impl DecodedProblem {
    pub(in crate::cuda) fn new(problem: &Problem<'_>, variant: &Variant) -> Result<Self> {
        let (documents, dim) = (problem.documents(), problem.dim());
        let pieces = pieces(documents, rows_max(variant, dim));
        let rows = pieces.iter().map(|piece| piece.rows.len()).max().unwrap_or(0);
        let segments = pieces.iter().flat_map(|piece| {
            let of_piece = piece.documents.start as usize..piece.documents.end as usize;
            let first = piece.rows.start;
            let moved = move |&[start, len]: &[u32; 2]| match len {
                0 => (0, 0),
                len => (start - first, len),
            };
            documents.segments()[of_piece].iter().map(moved)
        });
        let (starts, lens): (Vec<u32>, Vec<u32>) = segments.unzip();
        let documents = TokenLayout::scattered(rows, dim, &starts, &lens)?;
        Ok(DecodedProblem { pieces, documents })
    }

    /// The problem of the decoded documents, which is otherwise this one.
    pub(in crate::cuda) fn problem<'a>(&'a self, of: &Problem<'a>) -> Result<Problem<'a>> {
        let decoded = Problem::new(of.queries(), &self.documents, of.pairing())?;
        Ok(decoded.of_queries(of.wanted()))
    }

    /// The documents of each piece.
    pub(in crate::cuda) fn pieces(&self) -> Vec<Range<u32>> {
        self.pieces.iter().map(|piece| piece.documents.clone()).collect()
    }

    /// The decoded rows of every document.
    pub(in crate::cuda) fn segments(&self) -> &[[u32; 2]] {
        self.documents.segments()
    }
}

/// Decodes the pieces of a work's documents.
#[derive(Debug)]
pub(in crate::cuda) struct Decoding {
    kernel: Kernel<DecodedRowsParams>,
    operand: Operand,
    pieces: Vec<Piece>,
    /// Rows of the largest piece.
    rows: usize,
    dim: usize,
    access: Access,
}

/// Memory for a decoded piece.
pub(in crate::cuda) struct Place {
    pub maps: Maps,
    rows: u64,
    /// Address of the scales.
    pub scales: u64,
}

impl Decoding {
    pub(in crate::cuda) fn new(
        device: &Arc<CudaDevice>,
        variant: &Variant,
        DecodedProblem { pieces, documents }: DecodedProblem,
    ) -> Result<Decoding> {
        let Operand::Residual(element) = variant.operand else { return Err(not_decoded()) };
        let (rows, dim) = (documents.rows(), documents.dim());
        Ok(Decoding {
            kernel: device.kernel_of(&DECODED_ROWS, element)?,
            operand: element.into(),
            pieces,
            // A tensor map has a row.
            rows: rows.max(1),
            dim,
            access: decoded_access(variant, dim),
        })
    }

    /// Bytes of the decoded rows of a piece, up to their scales.
    fn rows_bytes(&self) -> u64 {
        (self.rows as u64 * self.access.pitch_bytes).next_multiple_of(SCALES_ALIGN)
    }

    /// Bytes of workspace for a decoded piece.
    pub(in crate::cuda) fn bytes(&self) -> u64 {
        self.rows_bytes() + (self.rows + NORMS_PADDING) as u64 * 4
    }

    /// The place of decoded pieces at an address with room for [`Decoding::bytes`].
    pub(in crate::cuda) fn place(&self, address: u64) -> Place {
        let access = Access { base: address, ..self.access };
        let maps = Maps::new(self.operand, access, self.rows, self.dim, Rounding::None);
        Place { maps, rows: address, scales: address + self.rows_bytes() }
    }

    /// The piece that a launch scores, by its number.
    pub(in crate::cuda) fn piece_of(&self, launch: &Launch) -> usize {
        self.pieces.partition_point(|piece| piece.documents.end <= launch.entries.start)
    }

    /// The documents' matrix as the decoded rows of a launch: kernels reach those through `Place`,
    /// and rows in the mask of the whole.
    pub(in crate::cuda) fn documents(
        &self,
        matrix: Matrix,
        lists: &DeviceLists,
        launch: &Launch,
    ) -> Matrix {
        let first = self.pieces.get(self.piece_of(launch)).map_or(0, |piece| piece.rows.start);
        let mask = if matrix.mask == 0 { 0 } else { matrix.mask + u64::from(first) };
        Matrix { mask, segments: lists.item_segments, item_len: 0, ..matrix }
    }

    /// Enqueues the kernel that decodes a piece.
    ///
    /// # Safety
    /// `tokens` must be the rows of the work's documents, `place` memory of the context that this
    /// stream alone uses; both must live until the kernel has run. `stream` must be one of the
    /// context.
    pub(in crate::cuda) unsafe fn run(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        tokens: Residuals,
        piece: usize,
        place: &Place,
    ) -> Result<()> {
        let Some(Piece { rows, .. }) = self.pieces.get(piece) else { return Ok(()) };
        let first = u64::from(rows.start);
        let params = DecodedRowsParams {
            tokens: Residuals {
                codes: tokens.codes + first * 4,
                residuals: tokens.residuals + first * u64::from(tokens.row_bytes),
                ..tokens
            },
            rows: place.rows,
            scales: place.scales,
            pitch_bytes: self.access.pitch_bytes as u32,
            n_rows: rows.len() as u32,
            dim: self.dim as u32,
            reserved: 0,
        };
        match params.n_rows.div_ceil(WARPS * WARP_ROWS) {
            0 => Ok(()),
            // SAFETY: the caller's promise; a warp for every so many rows, which the place has room
            // for; the kernel takes this struct.
            grid => unsafe { start(entered, stream, &self.kernel, grid, 0, &params) },
        }
    }
}

#[cfg(test)]
mod tests {
    use maxsim_kernels::table::forward::FORWARD;

    use super::*;
    use crate::problem::pairing::Pairing;

    #[test]
    fn documents_lie_where_their_piece_is_decoded_to() {
        let row = FORWARD.iter().find(|row| row.decodes_once()).expect("such a kernel");
        let lens: Vec<i64> = (0..3000).map(|i| i * 7 % 1001).collect();
        let queries = TokenLayout::padded(1, 300, 128).unwrap();
        let documents = TokenLayout::padded(3000, 1000, 128).unwrap().with_lengths(&lens).unwrap();
        let cross = Pairing::cross();
        let problem = Problem::new(&queries, &documents, &cross).unwrap();
        let decoded = DecodedProblem::new(&problem, row).unwrap();
        assert_eq!(decoded.pieces.len(), 6);
        let rows = decoded.pieces.iter().map(|piece| piece.rows.len()).max();
        assert_eq!(rows, Some(decoded.documents.rows()));
        let all: Vec<u32> = decoded.pieces().into_iter().flatten().collect();
        assert_eq!(all, (0..3000).collect::<Vec<u32>>());
        for piece in &decoded.pieces {
            for document in piece.documents.clone() {
                let [start, len] = documents.segments()[document as usize];
                let [moved, same] = decoded.segments()[document as usize];
                assert_eq!(same, len);
                assert!(len == 0 || moved == start - piece.rows.start);
            }
        }
        assert!(decoded.problem(&problem).unwrap().shape() == problem.shape());
    }
}
