//! The nearest documents of each query.

use super::AngularDistances;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::problem::pairing::Pairing;
use crate::problem::ranking::Ranking;
use crate::tokens::layout::TokenLayout;

/// One document and its distance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NearDocument {
    /// Document id.
    pub id: u32,
    /// Distance of the document: +∞ without tokens.
    pub distance: f32,
    /// Whether the document has a valid token; without one it is last.
    pub has_tokens: bool,
}

/// The nearest documents of one query, the nearest first.
///
/// It is another type than a [`Ranking`], whose merges would put the farthest first.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use]
pub struct NearestDocuments {
    /// At most `k` documents.
    pub found: Vec<NearDocument>,
    /// Documents with tokens whose distance is NaN, among all that were compared.
    pub n_nan: u64,
    /// Documents without a valid token, among all that were compared.
    pub n_empty: u64,
}

impl From<Ranking> for NearestDocuments {
    /// The documents of a ranking by [`ScoreOptions::angular`](crate::ScoreOptions::angular), of a
    /// search say, with their distances: its scores are minus these.
    ///
    /// ```
    /// use maxsim::angular::{NearDocument, NearestDocuments};
    /// use maxsim::streaming::StreamOptions;
    /// use maxsim::{Device, ScoreOptions, Tokens};
    ///
    /// let queries = Tokens::padded(&[1.0f32, 0.0], 1, 1, 2)?;
    /// let documents = Tokens::packed(&[0.0f32, 1.0, 2.0, 0.0], 2, &[0i64, 0, 1, 2])?;
    /// let options = StreamOptions::default().score(ScoreOptions::default().angular(true));
    /// let found = Device::cpu().search_stream(&queries, &documents, 3, &options)?;
    /// let nearest = NearestDocuments::from(found.rankings[0].clone());
    /// let distance = |near: &NearDocument| (near.id, near.distance);
    /// let distances = nearest.found.iter().map(distance);
    /// assert!(distances.eq([(2, 0.0), (1, 1.0), (0, f32::INFINITY)]));
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    fn from(Ranking { ranked, n_nan, n_empty }: Ranking) -> NearestDocuments {
        let near = |document: crate::Ranked| NearDocument {
            id: document.id,
            distance: if document.has_tokens { 0.0 - document.score } else { f32::INFINITY },
            has_tokens: document.has_tokens,
        };
        NearestDocuments { found: ranked.into_iter().map(near).collect(), n_nan, n_empty }
    }
}

impl AngularDistances {
    /// The `k` nearest documents of each query, of the distances of every query to every document
    /// ([`Pairing::cross`]). Equal distances are in the order of the documents' ids, documents
    /// without tokens come last, NaN before them. [`Device::angular`](crate::Device::angular) has
    /// an example.
    ///
    /// # Errors
    /// [`Error::Shape`] where the distances are not those of a cross product with as many
    /// documents.
    pub fn nearest(
        &self,
        documents: &impl AsRef<TokenLayout>,
        k: usize,
    ) -> Result<Vec<NearestDocuments>> {
        self.nearest_of(&Pairing::cross(), documents, k)
    }

    /// As [`AngularDistances::nearest`], of the distances of candidates, too: `pairing` is that of
    /// the distances. A document that is a query's candidate twice is there twice.
    ///
    /// ```
    /// use maxsim::{Device, Pairing, ScoreOptions, Tokens};
    ///
    /// let queries = Tokens::padded(&[1.0f32, 0.0], 1, 1, 2)?;
    /// let documents = Tokens::padded(&[0.0f32, 1.0, 2.0, 0.0, -1.0, 0.0], 3, 1, 2)?;
    /// let (candidates, options) = (Pairing::candidates(&[2, 1], 2)?, ScoreOptions::default());
    /// let found = Device::cpu().angular(&queries, &documents, &candidates, &options)?;
    /// let nearest = found.nearest_of(&candidates, &documents, 1)?;
    /// assert_eq!((nearest[0].found[0].id, nearest[0].found[0].distance), (1, 0.0));
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] where distances, pairing and documents do not go together, and of pairs,
    /// which have no rows.
    pub fn nearest_of(
        &self,
        pairing: &Pairing,
        documents: &impl AsRef<TokenLayout>,
        k: usize,
    ) -> Result<Vec<NearestDocuments>> {
        let rankings = self.scores.scores().top_k_of(pairing, documents, k)?;
        Ok(rankings.into_iter().map(NearestDocuments::from).collect())
    }
}
