//! Distances of the normals of neighbours.

use super::backward::check_clouds;
use super::values;
use crate::error::Result;
use crate::problem::chamfer::{Chamfer, Neighbours, each_cloud};
use crate::runtime::alloc::filled;
use crate::tokens::Tokens;
use crate::tokens::element::Element;

/// How normals of neighbours differ.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use]
pub struct NormalDistances {
    /// One for each pair of clouds, reduced as the clouds' distances were.
    pub values: Vec<f32>,
    /// Those of the first clouds' points: 0 where there is no neighbour.
    pub x: Vec<f32>,
    /// Those of the second clouds' points, if there are.
    pub y: Vec<f32>,
}

/// Normals shorter than this are divided by it.
const SHORTEST: f64 = 1e-6;

impl Chamfer {
    /// Distances of the normals of points and their neighbours: 1 − |cos|, or 1 − cos where normals
    /// have a side (`is_oriented`). Computed in f64, on the host. A normal shorter than 10⁻⁶ is
    /// divided by that, so a normal of zeros has distance 1 to all.
    ///
    /// ```
    /// use maxsim::chamfer::{ChamferOptions, NormalDistances};
    /// use maxsim::{Device, Tokens};
    ///
    /// let x = Tokens::padded(&[0.0f32, 0.0], 1, 1, 2)?;
    /// let y = Tokens::padded(&[1.0f32, 0.0, 3.0, 0.0], 1, 2, 2)?;
    /// let found = Device::cpu().chamfer(&x, &y, &ChamferOptions::default())?;
    /// let x_normals = Tokens::padded(&[1.0f32, 0.0], 1, 1, 2)?;
    /// let y_normals = Tokens::padded(&[-2.0f32, 0.0, 0.0, 1.0], 1, 2, 2)?;
    /// let normals: NormalDistances = found.normals(&x_normals, &y_normals, false)?;
    /// assert_eq!((&normals.x[..], &normals.y[..]), (&[0.0][..], &[0.0, 1.0][..]));
    /// assert_eq!(normals.values, [0.5]);
    /// assert_eq!(found.normals(&x_normals, &y_normals, true)?.values, [2.0 + 1.5]);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) where normals do not lie as their points do;
    /// [`Error::HostMemory`](crate::Error::HostMemory).
    pub fn normals<T: Element>(
        &self,
        x_normals: &Tokens<'_, T>,
        y_normals: &Tokens<'_, T>,
        is_oriented: bool,
    ) -> Result<NormalDistances> {
        let normals = [x_normals, y_normals];
        check_clouds("x_normals", &self.layouts[0], x_normals.layout())?;
        check_clouds("y_normals", &self.layouts[1], y_normals.layout())?;
        let mut found = [Vec::new(), Vec::new()];
        for (side, nearest) in self.directions() {
            found[side] = self.of_direction(normals, side, nearest, is_oriented)?;
        }
        let [x, y] = found;
        let is_x = |nearest: &Neighbours| std::ptr::eq(nearest, &raw const self.x);
        let values = values(self, |nearest| if is_x(nearest) { &x } else { &y })?;
        Ok(NormalDistances { values, x, y })
    }

    fn of_direction<T: Element>(
        &self,
        normals: [&Tokens<'_, T>; 2],
        side: usize,
        nearest: &Neighbours,
        is_oriented: bool,
    ) -> Result<Vec<f32>> {
        let [own, other] = [side, 1 - side].map(|side| &self.layouts[side]);
        let dim = own.dim();
        let row = |side: usize, row: usize| &normals[side].data()[row * dim..][..dim];
        let mut distances = filled(own.total_len(), 0.0)?;
        each_cloud(own, |pair, first, len| {
            for point in 0..len {
                if let Ok(neighbour) = usize::try_from(nearest.indices[first + point]) {
                    let at = own.item_rows(pair).start + point;
                    let neighbour = other.item_rows(pair).start + neighbour;
                    let cos = cosine(row(side, at), row(1 - side, neighbour));
                    let cos = if is_oriented { cos } else { cos.abs() };
                    distances[first + point] = (1.0 - cos) as f32;
                }
            }
        });
        Ok(distances)
    }
}

fn cosine<T: Element>(a: &[T], b: &[T]) -> f64 {
    let dot = |a: &[T], b: &[T]| -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(a.to_f32()) * f64::from(b.to_f32())).sum()
    };
    let length = |a: &[T]| {
        let length = dot(a, a).sqrt();
        // Not `max`, which would hide NaN.
        if length < SHORTEST { SHORTEST } else { length }
    };
    dot(a, b) / (length(a) * length(b))
}
