//! Token matrices in device memory: segments, groups of query rows, tensor maps.

/// A run of consecutive rows of a token matrix: one query or one document.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First row.
    pub start: u32,
    /// Number of rows; 0 for an empty item.
    pub len: u32,
}

/// Up to 16 consecutive tokens of one query: what one warp multiplies at a time.
///
/// A *tile* is as many groups as a kernel's query tile holds, of one query or of several.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Index of the query; [`Group::NO_QUERY`] for a group without tokens.
    pub query: u32,
    /// First row of the group in the matrix.
    pub start: u32,
    /// First row of the group within its query; a multiple of 16.
    pub row: u32,
    /// Number of rows (0 to 16), and in the bits above [`Group::PART_SHIFT`] which of the
    /// query's tiles this is.
    pub rows_and_part: u32,
}

impl Group {
    /// Rows of a group.
    pub const ROWS: usize = 16;
    /// The query of a group without tokens.
    pub const NO_QUERY: u32 = u32::MAX;
    /// First bit of the part's number.
    pub const PART_SHIFT: u32 = 5;
    /// Tiles that a query may have.
    pub const PARTS_MAX: u32 = 1 << (32 - Self::PART_SHIFT);
    /// A group without tokens.
    pub const NONE: Group = Group { query: Self::NO_QUERY, start: 0, row: 0, rows_and_part: 0 };

    /// The group of rows `row .. row + n_rows` of a query that starts at `start - row`.
    pub const fn new(query: u32, start: u32, row: u32, n_rows: u32, part: u32) -> Group {
        Group { query, start, row, rows_and_part: n_rows | part << Self::PART_SHIFT }
    }

    /// Number of rows.
    #[inline(always)]
    pub const fn n_rows(self) -> u32 {
        self.rows_and_part & ((1 << Self::PART_SHIFT) - 1)
    }

    /// Index of the group's tile among those of its query.
    #[inline(always)]
    pub const fn part(self) -> u32 {
        self.rows_and_part >> Self::PART_SHIFT
    }
}

/// An encoded tensor map (`CUtensorMap`): opaque to everyone but the driver and TMA.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TensorMap(pub [u64; 16]);

impl TensorMap {
    /// The map handed to kernels that use none.
    pub const NONE: TensorMap = TensorMap([0; 16]);
}

/// A token matrix in device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// Address of element (0, 0).
    pub base: u64,
    /// Distance between rows in bytes.
    pub pitch_bytes: u64,
    /// Address of `n` [`Segment`]s, one per item; 0 = item `i` is `item_len` rows from row
    /// `i * item_len`. Without a list nothing has to be fetched before the first copy.
    pub segments: u64,
    /// Address of one byte per row, non-zero = valid; 0 = every row is valid.
    pub mask: u64,
    /// Rows of every item, where there is no list of segments.
    pub item_len: u32,
    /// High word of descriptors of the rows in shared memory
    /// ([`crate::abi::layout::sm90::DESCRIPTOR_HIGH`]), for kernels that have no instructions to
    /// spare: the assembler moves a constant into place anew for every product, what comes with the
    /// launch once.
    pub descriptor_high: u32,
}
