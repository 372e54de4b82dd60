//! Tokens in host memory, as the CPU engine reads them.

use crate::cpu;
use crate::error::{Error, Result};
use crate::residual::{HostResiduals, ResidualTokens};
use crate::runtime::alloc::{LinedUp, copy_of};
use crate::tokens::Tokens;
use crate::tokens::format::Format;
use crate::tokens::layout::TokenLayout;
use crate::tokens::scaled_rows::{ScaledRows, scaled_rows};
use crate::tokens::scales::Scales;
use std::borrow::Cow;

/// A token matrix in host memory; its layout is the problem's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a, F: Format> {
    pub data: &'a [F::Stored],
    /// Scales of codes.
    pub scales: Option<&'a Scales<'a>>,
    /// Residual tokens to decode rows from, where there is no `data`.
    pub residuals: Option<&'a HostResiduals>,
    pub mask: Option<&'a [u8]>,
    /// A weight per row, of queries alone.
    pub weights: Option<&'a [f32]>,
}

impl<F: Format> Matrix<'_, F> {
    /// The rows of a call that normalises them where some are too long for it; see
    /// [`scaled_rows`].
    pub(super) fn scaled_rows(
        &self,
        normalize: bool,
        dim: usize,
    ) -> Result<Option<ScaledRows<F::Stored>>> {
        if normalize { scaled_rows::<F>(self.data, dim) } else { Ok(None) }
    }

    /// Replaces the data by scaled rows, where there are any.
    pub(super) fn with_rows<'b>(
        &'b self,
        rows: &'b Option<ScaledRows<F::Stored>>,
    ) -> Matrix<'b, F> {
        let data = rows.as_ref().map_or(self.data, |rows| &rows.data);
        Matrix { data, ..*self }
    }
}

/// A token matrix in host memory with what is beside its rows.
pub(crate) struct HostTokens<F: Format> {
    pub(crate) data: LinedUp<F::Stored>,
    pub(crate) scales: Option<Scales<'static>>,
    pub(crate) residuals: Option<HostResiduals>,
    pub(crate) mask: Option<Vec<u8>>,
    pub(crate) weights: Option<Vec<f32>>,
}

impl<F: Format> HostTokens<F> {
    pub(crate) fn matrix(&self) -> cpu::Matrix<'_, F> {
        let (scales, residuals) = (self.scales.as_ref(), self.residuals.as_ref());
        let (mask, weights) = (self.mask.as_deref(), self.weights.as_deref());
        cpu::Matrix { data: &self.data, scales, residuals, mask, weights }
    }

    /// Residual tokens to decode rows from.
    pub(crate) fn residuals(&self) -> Result<&HostResiduals> {
        self.residuals.as_ref().ok_or_else(|| Error::Shape {
            argument: "documents",
            expected: "residual-compressed tokens".into(),
            found: format!("{} tokens", F::FORMAT),
        })
    }

    /// The tokens, of elements or codes in a layout. The matrix is not copied.
    pub(crate) fn tokens(&self, layout: &TokenLayout) -> Result<Tokens<'_, F>> {
        let scales = self.scales.as_ref().map(Scales::copied).transpose()?;
        let data = Cow::Borrowed(&self.data[..]);
        let beside = (self.mask.as_deref(), self.weights.as_deref());
        Tokens::assemble(data, scales, layout.clone(), beside)
    }
}

impl<F: Format> HostTokens<F> {
    /// A copy of tokens.
    pub(crate) fn copy_of(tokens: &Tokens<'_, F>) -> Result<HostTokens<F>> {
        let data = LinedUp::copy_of(tokens.data())?;
        let scales = tokens.scales_of_codes().map(Scales::copied).transpose()?;
        let mask = tokens.mask().map(copy_of).transpose()?;
        let weights = tokens.weights().map(copy_of).transpose()?;
        Ok(HostTokens { data, scales, residuals: None, mask, weights })
    }

    /// Codes with their scales.
    pub(crate) fn of_codes(
        data: Vec<F::Stored>,
        scales: Scales<'static>,
        (mask, weights): (Option<&[u8]>, Option<&[f32]>),
    ) -> Result<HostTokens<F>> {
        let mask = mask.map(copy_of).transpose()?;
        let weights = weights.map(copy_of).transpose()?;
        Ok(HostTokens { data: data.into(), scales: Some(scales), residuals: None, mask, weights })
    }

    /// Residuals, decoded whenever they are scored.
    pub(crate) fn of_residuals(tokens: &ResidualTokens<'_>) -> Result<HostTokens<F>> {
        let residuals = Some(HostResiduals::new(tokens)?);
        let mask = tokens.mask().map(copy_of).transpose()?;
        Ok(HostTokens { data: Vec::new().into(), scales: None, residuals, mask, weights: None })
    }
}
