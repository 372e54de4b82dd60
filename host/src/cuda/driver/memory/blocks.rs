//! Size classes: small blocks that are handed out again instead of being freed.

use std::collections::BTreeMap;

/// Bytes of the smallest block. Blocks start at multiples of their size, and so of this, in memory
/// that the driver aligns to it.
const LEAST_BYTES: u64 = 512;

/// Bytes of the largest block.
pub(super) const MOST_BYTES: u64 = 2 << 20;

/// Bytes that small blocks are cut from.
const SLAB_BYTES: u64 = 32 << 10;

/// Number of classes: powers of two from [`LEAST_BYTES`] to [`MOST_BYTES`].
const N_CLASSES: usize = (MOST_BYTES / LEAST_BYTES).ilog2() as usize + 1;

/// Idle blocks by class, and the slabs that all blocks were cut from.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    idle: [Vec<u64>; N_CLASSES],
    /// By address: the class of the blocks of a slab.
    slabs: BTreeMap<u64, usize>,
}

/// The class of blocks with room for as many bytes; `None` where there is none.
pub(super) fn class_of(len_bytes: u64) -> Option<usize> {
    let bytes = len_bytes.max(LEAST_BYTES).next_power_of_two();
    (bytes <= MOST_BYTES).then(|| (bytes / LEAST_BYTES).ilog2() as usize)
}

/// Bytes of a class's blocks.
fn block_bytes(class: usize) -> u64 {
    LEAST_BYTES << class
}

/// Bytes of the slab that blocks of a class are cut from.
pub(super) fn slab_bytes(class: usize) -> u64 {
    block_bytes(class).max(SLAB_BYTES)
}

impl Blocks {
    /// Takes an idle block of a class.
    pub(super) fn take(&mut self, class: usize) -> Option<u64> {
        self.idle[class].pop()
    }

    /// Gives a block back, which nothing uses any more.
    pub(super) fn give(&mut self, class: usize, address: u64) {
        self.idle[class].push(address);
    }

    /// Cuts a new slab of [`slab_bytes`] into idle blocks.
    pub(super) fn add_slab(&mut self, class: usize, address: u64) {
        self.slabs.insert(address, class);
        let n = slab_bytes(class) / block_bytes(class);
        // The first block is handed out first.
        self.idle[class].extend((0..n).rev().map(|i| address + i * block_bytes(class)));
    }

    /// Forgets the slabs whose blocks are all idle, and returns their addresses.
    pub(super) fn drain_idle_slabs(&mut self) -> Vec<u64> {
        let slab_of = |class: usize, block: u64| {
            let slab = self.slabs.range(..=block).next_back();
            slab.filter(|&(_, &of)| of == class).map(|(&address, _)| address)
        };
        let mut n_idle: BTreeMap<u64, u64> = BTreeMap::new();
        for (class, idle) in self.idle.iter().enumerate() {
            for slab in idle.iter().filter_map(|&block| slab_of(class, block)) {
                *n_idle.entry(slab).or_default() += 1;
            }
        }
        let is_idle = |address: &u64, class: usize| {
            n_idle.get(address) == Some(&(slab_bytes(class) / block_bytes(class)))
        };
        let drained: Vec<(u64, usize)> = (self.slabs.iter().map(|(&a, &class)| (a, class)))
            .filter(|(address, class)| is_idle(address, *class))
            .collect();
        for &(address, class) in &drained {
            self.slabs.remove(&address);
            let slab = address..address + slab_bytes(class);
            self.idle[class].retain(|block| !slab.contains(block));
        }
        drained.into_iter().map(|(address, _)| address).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_have_room_and_the_next_smaller_one_has_not() {
        for len in [0, 1, 511, 512, 513, 4096, 4097, MOST_BYTES - 1, MOST_BYTES] {
            let class = class_of(len).expect("a class");
            assert!(block_bytes(class) >= len, "{len}");
            assert!(class == 0 || block_bytes(class - 1) < len, "{len}");
            assert!(slab_bytes(class).is_multiple_of(block_bytes(class)));
        }
        assert_eq!(class_of(MOST_BYTES + 1), None);
        assert_eq!(class_of(MOST_BYTES), Some(N_CLASSES - 1));
    }

    /// Blocks in use never overlap, and a slab is drained when its last block is back.
    #[test]
    fn a_slab_is_drained_when_all_its_blocks_are_idle() {
        let mut blocks = Blocks::default();
        let class = class_of(1000).expect("a class");
        assert_eq!(blocks.take(class), None);
        blocks.add_slab(class, 1 << 20);
        blocks.add_slab(class_of(600 << 10).expect("a class"), 1 << 30);
        let mut used: Vec<u64> = std::iter::from_fn(|| blocks.take(class)).collect();
        used.sort_unstable();
        assert_eq!(used.len() as u64, SLAB_BYTES / 1024);
        assert!(used.windows(2).all(|pair| pair[0] + 1024 <= pair[1]));
        assert_eq!(used[0], 1 << 20);
        assert_eq!(blocks.drain_idle_slabs(), [1 << 30]);
        let last = used.pop().expect("a block");
        used.iter().for_each(|&block| blocks.give(class, block));
        assert!(blocks.drain_idle_slabs().is_empty());
        blocks.give(class, last);
        assert_eq!(blocks.drain_idle_slabs(), [1 << 20]);
        assert_eq!((blocks.take(class), blocks.drain_idle_slabs()), (None, Vec::new()));
    }
}
