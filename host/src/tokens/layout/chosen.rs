//! Some items of a layout, in any order.

use super::{LayoutKind, TokenLayout};

impl TokenLayout {
    /// The items that are named, in that order and as often, as items of the same matrix with the
    /// same mask. Of a layout that the host knows.
    ///
    /// # Panics
    /// When there is no such item.
    pub(crate) fn chosen(&self, items: impl Iterator<Item = u32> + Clone) -> TokenLayout {
        let segments = items.clone().map(|item| self.segments[item as usize]).collect();
        let has_tokens: Vec<bool> = items.map(|item| self.has_tokens[item as usize]).collect();
        let has_empty_items = self.unread_mask || has_tokens.iter().any(|&has| !has);
        let TokenLayout { masked, unread_mask, weighted, .. } = *self;
        let layout = TokenLayout::new(LayoutKind::Scattered, self.rows, self.dim, segments);
        TokenLayout { masked, unread_mask, weighted, has_tokens, has_empty_items, ..layout }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_items_are_those_of_the_same_rows_and_mask() {
        let layout = TokenLayout::packed(6, 4, &[0i64, 2, 2, 5, 6]).unwrap();
        let layout = layout.with_mask(&[1, 1, 0, 1, 1, 0]).unwrap();
        let chosen = layout.chosen([2, 0, 3, 2].into_iter());
        assert_eq!(chosen.segments(), [[2, 3], [0, 2], [5, 1], [2, 3]]);
        assert_eq!([0, 1, 2, 3].map(|item| chosen.has_tokens(item)), [true, true, false, true]);
        assert_eq!((chosen.rows(), chosen.dim(), chosen.max_len()), (6, 4, 3));
        assert!(chosen.is_masked() && chosen.has_empty_items());
        assert!(!layout.chosen([0, 2].into_iter()).has_empty_items());
    }
}
