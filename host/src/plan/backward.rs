//! The parts of a gradient call that its kernels depend on.

use crate::tokens::element::ElementType;
use crate::tokens::format::TokenFormat;

/// What the documents' rows are read from for the queries' gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gathered {
    /// The elements that were scored.
    Elements,
    /// INT8 codes of them, which only an owner can sum, as they are.
    Codes,
    /// Residuals, which are decoded; the documents' gradient is there some rows at a time.
    Residuals,
}

impl Gathered {
    /// What tokens of a format are read as.
    pub(crate) fn of(format: TokenFormat) -> Gathered {
        match format {
            TokenFormat::Int8 => Gathered::Codes,
            TokenFormat::Residual(_) => Gathered::Residuals,
            _ => Gathered::Elements,
        }
    }
}

/// What gradients are wanted, beyond those of a problem.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackwardKind {
    /// Element type of the gradients.
    pub gradient: ElementType,
    /// Whether rows are added to as they come.
    pub is_atomic: bool,
    /// Whether rows are normalised.
    pub normalizes: bool,
    /// What calls are given of the documents.
    pub documents: Gathered,
}
