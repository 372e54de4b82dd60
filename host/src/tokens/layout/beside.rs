//! What tokens have beside them: a mask, weights. Weights are no part of a layout, but change what
//! it can be used for.

use super::TokenLayout;
use crate::error::{Error, Result};

impl TokenLayout {
    /// Whether single rows are masked.
    pub fn is_masked(&self) -> bool {
        self.masked
    }

    /// Whether tokens have weights.
    pub fn is_weighted(&self) -> bool {
        self.weighted
    }

    pub(crate) fn weighted_if(self, weighted: bool) -> TokenLayout {
        TokenLayout { weighted, ..self }
    }

    /// Refuses tokens with weights, where they would not be taken into account.
    pub(crate) fn check_unweighted(&self, what: &str, why: &str) -> Result<()> {
        match self.is_weighted() {
            false => Ok(()),
            true => Err(Error::Unsupported { what: format!("weights {what}"), why: why.into() }),
        }
    }
}
