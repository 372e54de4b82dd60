//! Residual-compressed tokens, as ColBERTv2 and PLAID store them: a centroid's id per token and a
//! bucket of 1, 2, 4 or 8 bits per element.
//!
//! ```text
//! token = centroids[code] + bucket_weights[bucket], divided by its length where `normalize`
//! ```
//!
//! [`ResidualCodec`] has the tables, [`ResidualTokens`] codes and buckets in the layouts that
//! tokens have, checked once. [`ResidualCodec::train`] makes a codec for given tokens,
//! [`ResidualTokens::encode`] encodes them, [`ResidualTokens::decode`] gives them back, and
//! [`ResidualTokens::backward`] turns gradients of tokens into those of the codec's tables.
//! [`Device::backward_residual`](crate::Device::backward_residual) gives those of scores, on every
//! device.
//!
//! ```
//! use std::sync::Arc;
//!
//! use maxsim::format::ElementType;
//! use maxsim::residual::{BitOrder, Centroids, Codes, ResidualCodec, ResidualTokens};
//! use maxsim::{AnyTokens, Device, Pairing, TokenLayout, Tokens};
//!
//! // Two centroids of dim 2, buckets of 4 bits: the first adds -0.75, each next one 0.1 more.
//! let weights: Vec<f32> = (0..16u8).map(|i| -0.75 + f32::from(i) / 10.0).collect();
//! let centroids = Centroids::F32(vec![1.0, 0.0, 0.0, 1.0].into());
//! let codec = Arc::new(ResidualCodec::new(4, 2, centroids, &weights, false)?);
//!
//! // One item of two tokens, each a code and one byte: the first element's bucket in the low bits.
//! let layout = TokenLayout::packed(2, 2, &[0i64, 2])?;
//! let (codes, residuals) = (Codes::from(&[1i32, 0][..]), vec![0x0F, 0xF0]);
//! let tokens = ResidualTokens::new(codec, codes, residuals, BitOrder::LittleEndian, layout)?;
//! assert_eq!(tokens.decode::<f32>()?.data(), [0.75, 0.25, 0.25, 0.75]);
//!
//! // For queries whose element type is known at run time.
//! let device = Device::cpu();
//! let queries = AnyTokens::from(Tokens::padded(&[1.0f32, 2.0], 1, 1, 2)?);
//! let documents = device.upload_residual_any(&tokens, ElementType::F32)?;
//! let scores =
//!     device.score_any(&queries, &documents, &Pairing::cross(), &Default::default())?;
//! assert_eq!(scores.values(), [1.75]);
//!
//! // As fast-plaid keeps them: items one after the other, bits in the other order.
//! assert!(tokens.is_packed());
//! let tokens = tokens.into_order(BitOrder::Colbert);
//! assert_eq!(tokens.residuals(), [0xF0, 0x0F]);
//! assert_eq!(tokens.decode::<f32>()?.data(), [0.75, 0.25, 0.25, 0.75]);
//! # Ok::<(), maxsim::Error>(())
//! ```

pub(crate) mod arrangement;
pub(crate) mod by_code;
pub(crate) mod codec;
mod decode;
mod encode;
mod kmeans;
mod lanes;
mod nearest;
mod rng;
pub(crate) mod streamed;
mod tokens;
mod train;
mod vjp;

pub use arrangement::Arrangement;
pub use codec::{Centroids, ResidualCodec};
pub(crate) use decode::HostResiduals;
pub use encode::{Arithmetic, EncodeOptions};
pub use maxsim_kernels::abi::residual::BitOrder;
pub use nearest::Nearest;
pub use streamed::{ArrangedTokens, ResidualSource};
pub use tokens::{Codes, ResidualTokens};
pub use train::TrainOptions;
pub use vjp::ResidualGradients;
