//! Documents that a search has named, until they are re-scored.

use super::Bounded;

/// Documents by rising id, each there until it is taken.
#[derive(Clone, Debug, Default)]
pub(super) struct Named {
    documents: Vec<Option<Bounded>>,
    ids: Vec<u32>,
    /// Documents that are left.
    n_left: usize,
    /// The place behind the one that was taken last: most are taken in their order.
    next: usize,
}

impl Named {
    /// Documents, of each id one.
    pub fn new(mut documents: Vec<Bounded>) -> Named {
        // Most of them come in order, of which a stable sort makes use.
        documents.sort_by_key(|document| document.id);
        documents.dedup_by_key(|document| document.id);
        let ids: Vec<u32> = documents.iter().map(|document| document.id).collect();
        let documents = documents.into_iter().map(Some).collect();
        Named { documents, n_left: ids.len(), ids, next: 0 }
    }

    /// Whether none is left.
    pub fn is_empty(&self) -> bool {
        self.n_left == 0
    }

    /// The ids of those that are left.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.documents.iter().flatten().map(|document| document.id)
    }

    /// Takes out the document with an id, where it is left.
    pub fn take(&mut self, id: u32) -> Option<Bounded> {
        let place = match self.ids.get(self.next) {
            Some(&next) if next == id => self.next,
            _ => self.ids.binary_search(&id).ok()?,
        };
        let taken = self.documents[place].take()?;
        self.n_left -= 1;
        self.next = place + 1;
        Some(taken)
    }

    /// Those that are left.
    pub fn into_left(self) -> impl Iterator<Item = Bounded> {
        self.documents.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_taken_once_in_any_order() {
        let document = |id| Bounded { id, score: 0.0, lower: 0.0, upper: f32::from(id as u16) };
        let mut named = Named::new([7, 2, 9, 4, 2].map(document).into());
        assert!(named.ids().eq([2, 4, 7, 9]));
        for id in [7, 9, 2] {
            assert_eq!(named.take(id).map(|taken| taken.upper), Some(id as f32));
            assert!(named.take(id).is_none() && !named.is_empty());
        }
        assert!(named.take(3).is_none() && named.ids().eq([4]));
        assert!(named.clone().into_left().map(|left| left.id).eq([4]));
        assert!(named.take(4).is_some() && named.is_empty());
    }
}
