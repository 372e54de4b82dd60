//! XTR: scores of the document tokens that query tokens retrieve, and rankings by them.

use maxsim::format::{Element, with_element};
use maxsim::xtr::{Normalizer, TokenPool, XtrOptions, XtrScores};
use maxsim::{Device, DeviceTokens, Result};
use pyo3::prelude::*;

use super::{Place, There, element};
use crate::errors::shape;
use crate::rank::RankingRoom;
use crate::side::{Memory, Pairs, Side};

/// What is asked for, as `_retrieved.py` numbers it.
#[derive(FromPyObject, Clone, Copy, Debug)]
pub struct Asked(
    /* tokens that a query token retrieves */ usize,
    /* normaliser */ u8,
    /* from the documents of its query alone */ bool,
    /* normalize */ bool,
);

impl Asked {
    fn options(self) -> Result<XtrOptions> {
        let Asked(k, normalizer, is_paired, normalize) = self;
        let normalizer = match normalizer {
            0 => Normalizer::Retrieved,
            1 => Normalizer::QueryTokens,
            2 => Normalizer::None,
            3 => Normalizer::PylateCompatible,
            other => return Err(shape("normalizer", "0 to 3", other)),
        };
        let pool = if is_paired { TokenPool::PairedDocuments } else { TokenPool::AllDocuments };
        let options = XtrOptions::default().k(k).normalizer(normalizer);
        Ok(options.pool(pool).normalize(normalize))
    }
}

/// Room in host memory for scores, and for what their gradients need.
#[derive(FromPyObject, Clone, Copy, Debug)]
pub struct XtrRoom(
    /* f32 scores */ Memory,
    /* f32 divisors */ Memory,
    /* i32 winners, of queries of one length */ Option<Memory>,
);

impl XtrRoom {
    /// # Safety
    /// The addresses must be those of as much memory as the numbers say, of this call alone.
    unsafe fn write(&self, scores: &XtrScores) -> Result<()> {
        let XtrRoom(values, divisors, winners) = *self;
        // SAFETY: the caller's promise.
        unsafe {
            values.write("scores", scores.values().len())?.copy_from_slice(scores.values());
            let found = scores.divisors();
            divisors.write("divisors", found.len())?.copy_from_slice(found);
            if let Some(winners) = winners {
                let found = scores.winners()?;
                winners.write("winners", found.len())?.copy_from_slice(found);
            }
        }
        Ok(())
    }
}

/// Scores tokens where they are, and writes to host memory.
#[pyfunction]
pub fn xtr(
    py: Python<'_>,
    place: Place,
    sides: (Side, Side),
    pairs: Pairs,
    asked: Asked,
    room: XtrRoom,
) -> PyResult<()> {
    place.run(py, |device| {
        // SAFETY: the Python caller gives the addresses of tensors that it keeps meanwhile.
        with_element!(element(&sides)?, T => unsafe {
            let queries = There::<T>::new(device, &sides.0)?;
            let documents = There::<T>::new(device, &sides.1)?;
            let (pairing, options) = (pairs.pairing()?, asked.options()?);
            room.write(&device.xtr(queries.tokens(), documents.tokens(), &pairing, &options)?)
        })
    })
}

/// Ranks documents by what query tokens retrieve, and writes to host memory. `mask` is the mask of
/// documents on a CUDA device in host memory: whether they have tokens must be known there.
#[pyfunction]
#[pyo3(signature = (place, sides, asked, room, mask=None))]
pub fn xtr_search(
    py: Python<'_>,
    place: Place,
    sides: (Side, Side),
    asked: Asked,
    room: RankingRoom,
    mask: Option<Memory>,
) -> PyResult<()> {
    place.run(py, |device| {
        // SAFETY: as in `xtr`.
        with_element!(element(&sides)?, T => unsafe {
            let queries = There::<T>::new(device, &sides.0)?;
            let documents = match mask {
                Some(mask) => There::OnDevice(masked::<T>(device, &sides.1, mask)?),
                None => There::<T>::new(device, &sides.1)?,
            };
            let (n, options) = (room.shape().1, asked.options()?);
            let found = device.xtr_search(queries.tokens(), documents.tokens(), n, &options)?;
            room.write_some(found)
        })
    })
}

/// A view of masked documents on a device, whose mask the host has, too.
///
/// # Safety
/// As [`There::new`]; `mask` must be in host memory, as many bytes as it says.
unsafe fn masked<T: Element>(
    device: &Device,
    side: &Side,
    mask: Memory,
) -> Result<DeviceTokens<T>> {
    // SAFETY: the caller's promise.
    unsafe {
        let layout = side.layout()?.with_mask(mask.read("mask", side.rows())?)?;
        DeviceTokens::from_raw_unchecked(device, side.raw_rows()?, layout)
    }
}
