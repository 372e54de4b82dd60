//! What tokens have beside them: a mask, weights. Weights are no part of a layout, but change what
//! it can be used for.

use super::TokenLayout;
use crate::error::{Error, Result};

impl TokenLayout {
    /// Says that tokens have weights in memory that is never read on the host. For
    /// [`DeviceTokens::from_raw_unchecked`](crate::DeviceTokens::from_raw_unchecked) with
    /// [weights](crate::format::RawRows::weights); [`Tokens::with_weights`](crate::Tokens) needs no
    /// such call.
    ///
    /// ```
    /// let layout = maxsim::TokenLayout::padded(2, 32, 128)?.with_unread_weights();
    /// assert!(layout.is_weighted());
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    pub fn with_unread_weights(self) -> TokenLayout {
        self.weighted_if(true)
    }

    /// Whether single rows are masked.
    pub fn is_masked(&self) -> bool {
        self.masked
    }

    /// Whether tokens have weights.
    pub fn is_weighted(&self) -> bool {
        self.weighted
    }

    /// The number of valid tokens of item `i`, with the mask of the tokens in this layout.
    pub(crate) fn n_valid(&self, i: usize, mask: Option<&[u8]>) -> usize {
        let rows = self.item_rows(i);
        match mask {
            Some(mask) => mask[rows].iter().filter(|&&m| m != 0).count(),
            None => rows.len(),
        }
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
