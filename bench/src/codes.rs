//! Compressed tokens in host memory: what is uploaded, and what peers and checks need of them.

use half::f16;
use maxsim::format::{
    AnyDeviceTokens, Element, ElementType, Quantized, ScaleType, TokenFormat, with_element,
    with_format,
};
use maxsim::residual::{BitOrder, Centroids, ResidualCodec, ResidualTokens};
use maxsim::search::{ErrorTerms, score_bounds};
use maxsim::{Device, DeviceTokens, Pairing, TokenLayout, Tokens};

use crate::object::{Place, Result, copy_to, host_slice, text};

/// Codes of any format, with their scales.
pub struct Codes(Box<dyn AnyCodes>);

/// What is asked of codes, whatever their format.
trait AnyCodes {
    /// Copies them to a device.
    fn upload(&self, device: &Device) -> Result<AnyDeviceTokens>;

    /// As [`Codes::read`].
    ///
    /// # Safety
    /// As [`Codes::read`].
    unsafe fn read(&self, codes: u64, scales: u64, mins: u64) -> Result<()>;

    /// The terms of embeddings that are just what the codes stand for.
    fn exact_terms(&self) -> Result<ErrorTerms>;
}

impl<F: Quantized> AnyCodes for Tokens<'static, F>
where
    AnyDeviceTokens: From<DeviceTokens<F>>,
{
    fn upload(&self, device: &Device) -> Result<AnyDeviceTokens> {
        Ok(device.upload(self).map_err(text)?.into())
    }

    unsafe fn read(&self, codes: u64, scales: u64, mins: u64) -> Result<()> {
        let found = self.scales();
        let rows = 0..self.layout().rows();
        let column = |of: &dyn Fn(usize) -> f32| rows.clone().map(of).collect::<Vec<f32>>();
        // SAFETY: the caller's promise.
        unsafe {
            copy_to(codes, bytemuck::cast_slice::<_, u8>(self.data()))?;
            copy_to(scales, &column(&|row| found.scale(row)))?;
            copy_to(mins, &column(&|row| found.min(row)))
        }
    }

    fn exact_terms(&self) -> Result<ErrorTerms> {
        let embeddings = self.dequantize().map_err(text)?;
        ErrorTerms::measured(self, &embeddings).map_err(text)
    }
}

impl Codes {
    /// Compresses the elements at a host address.
    ///
    /// # Safety
    /// The memory of the place must be readable.
    pub(crate) unsafe fn quantized(format: &str, scales: &str, place: Place<'_>) -> Result<Codes> {
        let element = element_type(place.element)?;
        // SAFETY: the caller's promise.
        with_element!(element, T => unsafe { of_elements::<T>(format, scales, place) })
    }

    /// Copies them to a device.
    pub(crate) fn upload(&self, device: &Device) -> Result<AnyDeviceTokens> {
        self.0.upload(device)
    }

    /// Writes the codes, `[rows, dim]` bytes, and per row the scale and the minimum as f32 (exact,
    /// whatever they are stored as); an address of 0 is left out.
    ///
    /// # Safety
    /// The memory must be writable.
    pub(crate) unsafe fn read(&self, codes: u64, scales: u64, mins: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.0.read(codes, scales, mins) }
    }

    /// How far scores may be from the exact scores of what the codes stand for, every query against
    /// every document: what the library states of its engines' rounding.
    pub(crate) fn rounding_bounds(&self, documents: &Codes) -> Result<Vec<f32>> {
        score_bounds(&self.0.exact_terms()?, &documents.0.exact_terms()?, &Pairing::cross())
            .map_err(text)
    }
}

/// # Safety
/// As [`Codes::quantized`].
unsafe fn of_elements<T: Element>(format: &str, scales: &str, place: Place<'_>) -> Result<Codes> {
    let scales = scale_type(scales)?;
    // SAFETY: the caller's promise.
    let tokens = unsafe { host_tokens::<T>(place)? };
    let of_name = |wanted: &TokenFormat| wanted.name() == format;
    let found = TokenFormat::QUANTIZED.into_iter().find(of_name);
    let Some(found) = found else {
        return Err(format!("format {format}: expected int8, int8-affine or fp8"));
    };
    with_format!(found, {
        codes F => Ok(Codes(Box::new(tokens.quantize::<F>(scales).map_err(text)?))),
        other => Err(format!("{other} is no format of codes")),
    })
}

/// Elements at a host address.
///
/// # Safety
/// The memory of the place must be readable as long as the tokens live.
pub(crate) unsafe fn host_tokens<'a, T: Element>(place: Place<'_>) -> Result<Tokens<'a, T>> {
    let Place { address, layout, mask, weights, .. } = place;
    let rows = layout.rows();
    // SAFETY: the caller's promise: this many elements, mask bytes and weights.
    unsafe {
        let data = host_slice::<T>(address, rows * layout.dim())?;
        let mut tokens = Tokens::from_layout(data, layout).map_err(text)?;
        if mask != 0 {
            tokens = tokens.with_mask(host_slice::<u8>(mask, rows)?).map_err(text)?;
        }
        if weights != 0 {
            tokens = tokens.with_weights(host_slice::<f32>(weights, rows)?).map_err(text)?;
        }
        Ok(tokens)
    }
}

fn scale_type(name: &str) -> Result<ScaleType> {
    let all = [ScaleType::F16, ScaleType::F32, ScaleType::Tensor];
    let found = all.into_iter().find(|scales| scales.name() == name);
    found.ok_or_else(|| format!("scales {name}: expected f16, f32 or tensor"))
}

/// Residual-compressed tokens at host addresses.
#[derive(Clone, Copy)]
pub(crate) struct Residual<'a> {
    pub nbits: u32,
    /// f16 `[n_centroids, dim]`.
    pub centroids: u64,
    pub n_centroids: usize,
    /// f32 `[2^nbits]`.
    pub bucket_weights: u64,
    pub normalize: bool,
    /// i32 `[rows]`.
    pub codes: u64,
    /// `[rows, ceil(dim · nbits / 8)]`.
    pub residuals: u64,
    pub order: &'a str,
}

impl Residual<'_> {
    /// Checks them; nothing is copied but the weights.
    ///
    /// # Safety
    /// The memory must be readable as long as the tokens live.
    pub(crate) unsafe fn tokens<'a>(self, layout: TokenLayout) -> Result<ResidualTokens<'a>> {
        let order = BitOrder::ALL.into_iter().find(|order| order.name() == self.order);
        let order = order
            .ok_or_else(|| format!("order {}: expected colbert or little-endian", self.order))?;
        if self.nbits > 8 {
            return Err(format!("nbits {}: expected 1, 2, 4 or 8", self.nbits));
        }
        let (rows, dim) = (layout.rows(), layout.dim());
        // SAFETY: the caller's promise.
        let (centroids, weights, codes, residuals) = unsafe {
            (
                host_slice::<f16>(self.centroids, self.n_centroids * dim)?,
                host_slice::<f32>(self.bucket_weights, 1 << self.nbits)?,
                host_slice::<i32>(self.codes, rows)?,
                host_slice::<u8>(self.residuals, rows * (dim * self.nbits as usize).div_ceil(8))?,
            )
        };
        let centroids = Centroids::F16(centroids.into());
        let codec = ResidualCodec::new(self.nbits, dim, centroids, weights, self.normalize);
        let codec = codec.map_err(text)?.into();
        ResidualTokens::new(codec, codes, residuals, order, layout).map_err(text)
    }
}

/// Residual tokens on a device, for queries of this element type.
pub(crate) fn upload_residual(
    device: &Device,
    tokens: &ResidualTokens<'_>,
    query_element: &str,
) -> Result<AnyDeviceTokens> {
    device.upload_residual_any(tokens, element_type(query_element)?).map_err(text)
}

/// The element type of a name.
pub(crate) fn element_type(name: &str) -> Result<ElementType> {
    let element = ElementType::ALL.into_iter().find(|element| element.name() == name);
    element.ok_or_else(|| format!("element {name}: expected f16, bf16 or f32"))
}
