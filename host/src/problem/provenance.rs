//! Provenance of winners: the layouts and the pairing that they were computed for.
//!
//! Gradients refuse the winners of other tokens.

use std::sync::{Arc, Mutex};

use super::pairing::Pairing;
use crate::runtime::swap::lock;
use crate::tokens::layout::TokenLayout;

/// The layouts of scored tokens, and their pairing.
#[derive(Clone, Debug)]
pub struct Provenance {
    pub queries: Arc<TokenLayout>,
    pub documents: Arc<TokenLayout>,
    pub pairing: Arc<Pairing>,
}

impl Provenance {
    /// Whether winners of one call may be read as winners of the other.
    pub(crate) fn is_same(&self, other: &Provenance) -> bool {
        let same =
            |a: &Arc<TokenLayout>, b: &Arc<TokenLayout>| Arc::ptr_eq(a, b) || a.same_items(b);
        same(&self.queries, &other.queries)
            && same(&self.documents, &other.documents)
            && (Arc::ptr_eq(&self.pairing, &other.pairing) || self.pairing == other.pairing)
    }
}

/// The provenance of the last call that wrote some winners; `None` where no call did, or where
/// foreign memory holds them.
#[derive(Clone, Debug, Default)]
pub struct LastProvenance(Arc<Mutex<Option<Provenance>>>);

impl LastProvenance {
    pub(crate) fn get(&self) -> Option<Provenance> {
        lock(&self.0).clone()
    }

    pub(crate) fn set(&self, provenance: Provenance) {
        *lock(&self.0) = Some(provenance);
    }

    /// Whether both are of the same scores.
    pub(crate) fn is(&self, other: &LastProvenance) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
