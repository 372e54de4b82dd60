//! Tokens that are projections of hidden states: made, or made and scored some at a time.

pub(crate) mod backward;
mod on_cuda;
pub(crate) mod prepared;
mod projector;
#[allow(unsafe_code)]
mod raw;
pub(crate) mod score;
mod slices;
mod slots;
pub(crate) mod training;

use self::projector::Projector;
use crate::cpu::projection::Weights;
use crate::device::Device;
use crate::device::tokens::{DeviceTokens, TokensRef};
use crate::error::{Error, Result};
use crate::tokens::element::Element;
use crate::tokens::layout::TokenLayout;
use crate::tokens::layout::limits::check_dim;

/// A linear layer that makes tokens of hidden states h, rows of up to
/// [8192](crate::layout::MAX_HIDDEN) elements:
///
/// ```text
/// u = W · h + b        token = u · r,  r = 1 / √max(‖u‖², 10⁻¹²)
/// ```
///
/// with r = 1 where tokens are not normalised. u is summed in f32, and a token's elements are
/// rounded to the element type once. W is
/// `[dim, hidden]`, the weight of a `torch.nn.Linear`, given as tokens or a handle: one item of
/// `dim` rows, of 1 to 4096. b is one row of `dim` elements.
///
/// ```
/// use maxsim::projection::Projection;
/// use maxsim::{Device, Tokens};
///
/// // From hidden states of three elements to tokens of two.
/// let weight = Tokens::padded(&[1.0f32, 0.0, 0.0, 0.0, 2.0, 0.0], 1, 2, 3)?;
/// let bias = Tokens::padded(&[0.0f32, 1.0], 1, 1, 2)?;
/// let projection = Projection::new(&weight)?.bias(&bias)?;
/// assert_eq!((projection.dim(), projection.hidden()), (2, 3));
///
/// let hidden = Tokens::padded(&[3.0f32, 1.5, 7.0], 1, 1, 3)?;
/// let device = Device::cpu();
/// assert_eq!(device.project(&hidden, &projection)?.download()?.data(), [3.0, 4.0]);
/// let projection = projection.normalize(true);
/// assert_eq!(device.project(&hidden, &projection)?.download()?.data(), [0.6, 0.8]);
/// # Ok::<(), maxsim::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Projection<'a, T: Element> {
    weight: TokensRef<'a, T>,
    bias: Option<TokensRef<'a, T>>,
    normalize: bool,
}

impl<'a, T: Element> Projection<'a, T> {
    /// A projection by a weight, without bias, that does not normalise.
    ///
    /// # Errors
    /// [`Error::Shape`] where the weight is not one item of all of its rows, or has a mask or
    /// weights of tokens, or tokens of so many elements cannot be scored.
    pub fn new(weight: impl Into<TokensRef<'a, T>>) -> Result<Projection<'a, T>> {
        let weight = weight.into();
        let layout = weight.layout();
        check_matrix("weight", layout, &[[0, layout.rows() as u32]])?;
        check_dim(layout.rows())?;
        Ok(Projection { weight, bias: None, normalize: false })
    }

    /// Adds a bias.
    ///
    /// # Errors
    /// [`Error::Shape`] where it is not one row of [`Projection::dim`] elements.
    pub fn bias(self, bias: impl Into<TokensRef<'a, T>>) -> Result<Projection<'a, T>> {
        let bias = bias.into();
        check_matrix("bias", bias.layout(), &[[0, 1]])?;
        let (rows, elements) = (bias.layout().rows(), bias.layout().dim());
        if (rows, elements) != (1, self.dim()) {
            return Err(Error::Shape {
                argument: "bias",
                expected: format!("one row of {} elements, one per row of the weight", self.dim()),
                found: format!("{rows} rows of {elements}"),
            });
        }
        Ok(Projection { bias: Some(bias), ..self })
    }

    /// Divides tokens by their length, or does not.
    pub fn normalize(self, normalize: bool) -> Projection<'a, T> {
        Projection { normalize, ..self }
    }

    /// Elements of a token.
    pub fn dim(&self) -> usize {
        self.weight.layout().rows()
    }

    /// Elements of a row of hidden states.
    pub fn hidden(&self) -> usize {
        self.weight.layout().dim()
    }

    /// Checks hidden states, and that a device can project them.
    fn check(&self, device: &Device, hidden: &TokensRef<'_, T>) -> Result<()> {
        hidden.check_device("hidden", device)?;
        self.weight.check_device("weight", device)?;
        if let Some(bias) = &self.bias {
            bias.check_device("bias", device)?;
        }
        hidden.layout().check_read("hidden")?;
        if hidden.layout().dim() != self.hidden() {
            return Err(Error::Shape {
                argument: "hidden",
                expected: format!("rows of {} elements, as the weight has", self.hidden()),
                found: format!("rows of {}", hidden.layout().dim()),
            });
        }
        Ok(())
    }

    /// The weights as the CPU engine multiplies with them.
    fn host_weights(&self) -> Result<Weights> {
        let bias = self.bias.as_ref().map(TokensRef::host_matrix).transpose()?;
        let (weight, bias) = (self.weight.host_matrix()?.data, bias.map(|bias| bias.data));
        Weights::new(weight, bias, self.hidden(), self.normalize)
    }
}

/// Checks a weight or bias: a matrix that is one item, and nothing beside it.
fn check_matrix(argument: &'static str, layout: &TokenLayout, items: &[[u32; 2]]) -> Result<()> {
    layout.check_read(argument)?;
    if layout.segments() != items || layout.is_masked() || layout.is_weighted() {
        return Err(Error::Shape {
            argument,
            expected: "one item that has all rows, without a mask or weights of tokens".into(),
            found: format!("{layout:?}"),
        });
    }
    Ok(())
}

impl Device {
    /// Projects hidden states and keeps the tokens: of queries, say, or of documents that are
    /// scored more than once. Items, mask and, on the CPU, weights stay; the tokens have copies of
    /// them.
    ///
    /// A masked row's token is computed too, and counts as little as the row did.
    ///
    /// # Errors
    /// [`Error::Shape`] where rows are not as long as those of the weight;
    /// and, on a CUDA device, where rows of hidden states or of the weight are not on 16-byte
    /// boundaries, as views of foreign memory may be; [`Error::Unsupported`] for hidden states with
    /// weights on a CUDA device; [`Error::WrongDevice`]; [`Error::HostMemory`],
    /// [`Error::DeviceMemory`].
    pub fn project<'a, T: Element>(
        &self,
        hidden: impl Into<TokensRef<'a, T>>,
        projection: &Projection<'_, T>,
    ) -> Result<DeviceTokens<T>> {
        let hidden = hidden.into();
        let projector = Projector::new(self, projection, hidden)?;
        let layout = hidden.layout().projected(projection.dim());
        projector.tokens(0..layout.rows(), layout)
    }
}
