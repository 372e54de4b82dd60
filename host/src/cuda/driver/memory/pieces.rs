//! Page-locked pieces of memory that a device keeps from one search to the next: page-locking takes
//! longer than filling and copying.

use std::sync::{Arc, Mutex};

use super::Pinned;
use crate::cuda::driver::context::CudaDevice;
use crate::cuda::driver::event::CudaEvent;
use crate::error::Result;
use crate::runtime::swap::lock;

/// Most bytes that a device keeps: 64 MiB, the pieces of eight threads, and what their boundaries
/// take.
const KEPT_BYTES_MAX: usize = (64 << 20) + (64 << 10);

/// Page-locked memory that is filled, and filled again when it was copied.
#[derive(Debug)]
pub(in crate::cuda) struct Piece {
    pub pinned: Pinned,
    /// The last copies out of it. Wait for them before filling it.
    pub copied: CudaEvent,
}

/// The pieces of a device that no search uses, those that were given first in front.
#[derive(Debug, Default)]
pub(in crate::cuda) struct IdlePieces(Mutex<Vec<Piece>>);

impl Piece {
    /// A piece of at least so many bytes: one that the device keeps, or a new one.
    pub(in crate::cuda) fn take(device: &Arc<CudaDevice>, len_bytes: usize) -> Result<Piece> {
        let kept = device.idle_pieces.take(len_bytes);
        let new = || {
            let pinned = Pinned::new(device, len_bytes)?;
            Ok(Piece { pinned, copied: CudaEvent::new(device, false)? })
        };
        kept.map_or_else(new, Ok)
    }
}

impl IdlePieces {
    /// Takes the smallest piece that has room.
    fn take(&self, len_bytes: usize) -> Option<Piece> {
        let mut idle = lock(&self.0);
        let lens = idle.iter().map(|piece| piece.pinned.len_bytes()).enumerate();
        let (at, _) = lens.filter(|(_, len)| *len >= len_bytes).min_by_key(|(_, len)| *len)?;
        Some(idle.remove(at))
    }

    /// Keeps a piece whose copies are all behind its event, and drops the oldest where there are
    /// too many bytes.
    pub(in crate::cuda) fn give(&self, piece: Piece) {
        let mut idle = lock(&self.0);
        idle.push(piece);
        let mut left: usize = idle.iter().map(|piece| piece.pinned.len_bytes()).sum();
        let is_surplus = |piece: &mut Piece| {
            let is_surplus = left > KEPT_BYTES_MAX;
            left -= if is_surplus { piece.pinned.len_bytes() } else { 0 };
            is_surplus
        };
        let surplus: Vec<Piece> = idle.extract_if(.., is_surplus).collect();
        drop(idle);
        // Freed outside the lock: the driver may take its time.
        drop(surplus);
    }
}
