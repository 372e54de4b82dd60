//! The parts of a gradient call that its kernels depend on.

use crate::tokens::element::ElementType;
use crate::tokens::format::TokenFormat;

/// Form of the documents' rows that the queries' gradient is summed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gathered {
    /// The elements that were scored.
    Elements,
    /// INT8 codes of the elements. Only the deterministic strategy can sum them as they are.
    Codes,
    /// Residuals, which are decoded; the documents' gradient is there some rows at a time.
    Residuals,
}

impl Gathered {
    /// Form of tokens of a format.
    pub(crate) fn of(format: TokenFormat) -> Gathered {
        match format {
            TokenFormat::Int8 => Gathered::Codes,
            TokenFormat::Residual(_) => Gathered::Residuals,
            _ => Gathered::Elements,
        }
    }
}

/// Properties of the gradients that are wanted, beyond those of the problem.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackwardKind {
    /// Element type of the gradients.
    pub gradient: ElementType,
    /// Whether rows are added to as they come.
    pub is_atomic: bool,
    /// Whether rows are normalised.
    pub normalizes: bool,
    /// Whether scores are angular: rows of zeros have no gradient then.
    pub angular: bool,
    /// Whether query tokens have weights.
    pub weighted: bool,
    /// Form of the documents that calls are given.
    pub documents: Gathered,
    /// Whether the gradients of queries and of documents are wanted.
    pub sides: [bool; 2],
}
