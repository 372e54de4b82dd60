//! Misuse that must not compile.
//!
//! Each example comes twice: as it should be, which compiles, and with the one wrong
//! line, which must not; so nothing else can be the reason. Stable rustdoc takes the
//! error codes as comments; one that runs with RUSTC_BOOTSTRAP=1 checks them.
//!
//! # Tokens borrow their data
//!
//! ```
//! # use maxsim::Tokens;
//! let data = vec![0.0f32; 8];
//! let tokens = Tokens::padded(&data, 1, 2, 4).unwrap();
//! assert_eq!(tokens.layout().rows(), 2);
//! drop(data);
//! ```
//!
//! They cannot outlive it:
//!
//! ```compile_fail,E0505
//! # use maxsim::Tokens;
//! let data = vec![0.0f32; 8];
//! let tokens = Tokens::padded(&data, 1, 2, 4).unwrap();
//! drop(data);
//! assert_eq!(tokens.layout().rows(), 2);
//! ```
//!
//! nor can it change under them:
//!
//! ```compile_fail,E0502
//! # use maxsim::Tokens;
//! let mut data = vec![0.0f32; 8];
//! let tokens = Tokens::padded(&data, 1, 2, 4).unwrap();
//! data[0] = 1.0;
//! assert_eq!(tokens.layout().rows(), 2);
//! ```
//!
//! The same goes for a mask that is lent:
//!
//! ```
//! # use maxsim::Tokens;
//! # let data = vec![0.0f32; 8];
//! let mask = vec![1u8; 2];
//! let tokens = Tokens::padded(&data, 1, 2, 4).unwrap().with_mask(&mask).unwrap();
//! assert_eq!(tokens.mask(), Some(&[1, 1][..]));
//! drop(mask);
//! ```
//!
//! ```compile_fail,E0505
//! # use maxsim::Tokens;
//! # let data = vec![0.0f32; 8];
//! let mask = vec![1u8; 2];
//! let tokens = Tokens::padded(&data, 1, 2, 4).unwrap().with_mask(&mask).unwrap();
//! drop(mask);
//! assert_eq!(tokens.mask(), Some(&[1, 1][..]));
//! ```
//!
//! A packed list owns its copy, and a handle owns its memory: both may outlive the data.
//!
//! ```
//! # use maxsim::{Device, Tokens};
//! let data = vec![0.0f32; 8];
//! let packed = Tokens::pack(&[&data[..4], &data[4..]], 4).unwrap();
//! let handle = Device::cpu().upload(&Tokens::padded(&data, 1, 2, 4).unwrap()).unwrap();
//! drop(data);
//! assert_eq!((packed.layout().n_items(), handle.layout().n_items()), (2, 1));
//! ```
//!
//! # Queries and documents have one element type
//!
//! ```
//! # use half::f16;
//! # use maxsim::{Device, Pairing, Tokens};
//! let (q, d) = (vec![f16::ZERO; 4], vec![f16::ZERO; 4]);
//! let queries = Tokens::padded(&q, 1, 1, 4).unwrap();
//! let documents = Tokens::padded(&d, 1, 1, 4).unwrap();
//! Device::cpu().score(&queries, &documents, &Pairing::cross()).unwrap();
//! ```
//!
//! ```compile_fail,E0277
//! # use half::{bf16, f16};
//! # use maxsim::{Device, Pairing, Tokens};
//! let (q, d) = (vec![f16::ZERO; 4], vec![bf16::ZERO; 4]);
//! let queries = Tokens::padded(&q, 1, 1, 4).unwrap();
//! let documents = Tokens::padded(&d, 1, 1, 4).unwrap();
//! Device::cpu().score(&queries, &documents, &Pairing::cross()).unwrap();
//! ```
//!
//! On handles as well:
//!
//! ```
//! # use half::f16;
//! # use maxsim::{Device, Pairing, Tokens};
//! # let (q, d) = (vec![f16::ZERO; 4], vec![f16::ZERO; 4]);
//! let queries = Device::cpu().upload(&Tokens::padded(&q, 1, 1, 4).unwrap()).unwrap();
//! let documents = Tokens::padded(&d, 1, 1, 4).unwrap();
//! Device::cpu().score(&queries, &documents, &Pairing::cross()).unwrap();
//! ```
//!
//! ```compile_fail,E0277
//! # use half::{bf16, f16};
//! # use maxsim::{Device, Pairing, Tokens};
//! # let (q, d) = (vec![f16::ZERO; 4], vec![bf16::ZERO; 4]);
//! let queries = Device::cpu().upload(&Tokens::padded(&q, 1, 1, 4).unwrap()).unwrap();
//! let documents = Tokens::padded(&d, 1, 1, 4).unwrap();
//! Device::cpu().score(&queries, &documents, &Pairing::cross()).unwrap();
//! ```
//!
//! # Compressed tokens meet what they can be multiplied with
//!
//! ```
//! # use half::f16;
//! # use maxsim::format::{Int8Affine, ScaleType};
//! # use maxsim::{Device, Pairing, Tokens};
//! # let data = [f16::ONE; 4];
//! let queries = Tokens::padded(&data, 1, 1, 4).unwrap();
//! let documents = queries.quantize::<Int8Affine>(ScaleType::F16).unwrap();
//! Device::cpu().score(&queries, &documents, &Pairing::cross()).unwrap();
//! ```
//!
//! ```compile_fail,E0277
//! # use half::f16;
//! # use maxsim::format::{Int8, ScaleType};
//! # use maxsim::{Device, Pairing, Tokens};
//! # let data = [f16::ONE; 4];
//! let queries = Tokens::padded(&data, 1, 1, 4).unwrap();
//! let documents = queries.quantize::<Int8>(ScaleType::F16).unwrap();
//! Device::cpu().score(&queries, &documents, &Pairing::cross()).unwrap();
//! ```
//!
//! and have no gradients:
//!
//! ```
//! # use maxsim::{Device, Pairing, Tokens};
//! let tokens = Tokens::padded(&[1.0f32; 4], 1, 1, 4).unwrap();
//! Device::cpu().score_for_training(&tokens, &tokens, &Pairing::cross()).unwrap();
//! ```
//!
//! ```compile_fail,E0277
//! # use maxsim::format::{Int8, ScaleType};
//! # use maxsim::{Device, Pairing, Tokens};
//! let tokens = Tokens::padded(&[1.0f32; 4], 1, 1, 4).unwrap();
//! let tokens = tokens.quantize::<Int8>(ScaleType::F16).unwrap();
//! Device::cpu().score_for_training(&tokens, &tokens, &Pairing::cross()).unwrap();
//! ```
//!
//! # Only the three element types exist
//!
//! ```
//! # use maxsim::Tokens;
//! Tokens::padded(&[0.0f32; 4], 1, 1, 4).unwrap();
//! ```
//!
//! ```compile_fail,E0277
//! # use maxsim::Tokens;
//! Tokens::padded(&[0.0f64; 4], 1, 1, 4).unwrap();
//! ```
//!
//! and no crate can add one, since kernels exist for these only:
//!
//! ```
//! # use maxsim::format::ElementType;
//! #[derive(Clone, Copy)]
//! #[repr(transparent)]
//! struct Mine(f32);
//! // SAFETY: an f32 in all but name.
//! unsafe impl bytemuck::Zeroable for Mine {}
//! // SAFETY: as above.
//! unsafe impl bytemuck::Pod for Mine {}
//! impl Mine {
//!     const TYPE: ElementType = ElementType::F32;
//!     fn to_f32(self) -> f32 {
//!         self.0
//!     }
//!     fn from_f32(value: f32) -> Self {
//!         Mine(value)
//!     }
//! }
//! assert_eq!((Mine::TYPE, Mine::from_f32(1.0).to_f32()), (ElementType::F32, 1.0));
//! ```
//!
//! ```compile_fail,E0277
//! # use maxsim::format::{Element, ElementType};
//! #[derive(Clone, Copy)]
//! #[repr(transparent)]
//! struct Mine(f32);
//! // SAFETY: an f32 in all but name.
//! unsafe impl bytemuck::Zeroable for Mine {}
//! // SAFETY: as above.
//! unsafe impl bytemuck::Pod for Mine {}
//! impl Element for Mine {
//!     const TYPE: ElementType = ElementType::F32;
//!     fn to_f32(self) -> f32 {
//!         self.0
//!     }
//!     fn from_f32(value: f32) -> Self {
//!         Mine(value)
//!     }
//! }
//! assert_eq!((Mine::TYPE, Mine::from_f32(1.0).to_f32()), (ElementType::F32, 1.0));
//! ```
//!
//! # A call borrows its handles
//!
//! ```
//! # use maxsim::{Device, Pairing, Tokens, TokensRef};
//! # let device = Device::cpu();
//! # let tokens = Tokens::padded(&[1.0f32; 4], 1, 1, 4).unwrap();
//! let handle = device.upload(&tokens).unwrap();
//! let input = TokensRef::from(&handle);
//! device.score(input, input, &Pairing::cross()).unwrap();
//! drop(handle);
//! ```
//!
//! ```compile_fail,E0505
//! # use maxsim::{Device, Pairing, Tokens, TokensRef};
//! # let device = Device::cpu();
//! # let tokens = Tokens::padded(&[1.0f32; 4], 1, 1, 4).unwrap();
//! let handle = device.upload(&tokens).unwrap();
//! let input = TokensRef::from(&handle);
//! drop(handle);
//! device.score(input, input, &Pairing::cross()).unwrap();
//! ```
//!
//! # A stream runs one thread's calls
//!
//! Its workspace belongs to one call at a time, so two threads need two streams:
//!
//! ```
//! # use maxsim::Device;
//! let (mut a, mut b) = (Device::cpu().stream().unwrap(), Device::cpu().stream().unwrap());
//! std::thread::scope(|scope| {
//!     scope.spawn(|| { let _mine = &mut a; });
//!     scope.spawn(|| { let _mine = &mut b; });
//! });
//! ```
//!
//! ```compile_fail,E0499
//! # use maxsim::Device;
//! let mut a = Device::cpu().stream().unwrap();
//! std::thread::scope(|scope| {
//!     scope.spawn(|| { let _mine = &mut a; });
//!     scope.spawn(|| { let _mine = &mut a; });
//! });
//! ```
//!
//! # Gradients come from the documents, or from INT8 codes of them
//!
//! ```
//! # use maxsim::format::{Int8, ScaleType};
//! # use maxsim::{Device, Pairing, Tokens};
//! let tokens = Tokens::padded(&[0.5f32, 1.0], 1, 1, 2).unwrap();
//! let (device, cross) = (Device::cpu(), Pairing::cross());
//! let scores = device.score_for_training(&tokens, &tokens, &cross).unwrap();
//! let codes = tokens.quantize::<Int8>(ScaleType::F16).unwrap();
//! device.backward(&tokens, &codes, scores.with_grad(&[1.0]), &Default::default()).unwrap();
//! ```
//!
//! ```compile_fail,E0277
//! # use maxsim::format::{Fp8, ScaleType};
//! # use maxsim::{Device, Pairing, Tokens};
//! let tokens = Tokens::padded(&[0.5f32, 1.0], 1, 1, 2).unwrap();
//! let (device, cross) = (Device::cpu(), Pairing::cross());
//! let scores = device.score_for_training(&tokens, &tokens, &cross).unwrap();
//! let codes = tokens.quantize::<Fp8>(ScaleType::F16).unwrap();
//! device.backward(&tokens, &codes, scores.with_grad(&[1.0]), &Default::default()).unwrap();
//! ```
//!
//! # Foreign memory is the caller's word
//!
//! ```
//! # use maxsim::format::RawRows;
//! # use maxsim::{Device, DeviceTokens, TokenLayout};
//! let layout = TokenLayout::padded(1, 1, 4).unwrap();
//! // SAFETY: the CPU has no device memory: refused before the address is used.
//! let rows = RawRows::new(0, 16);
//! let view = unsafe { DeviceTokens::<f32>::from_raw_parts(&Device::cpu(), rows, layout) };
//! assert!(view.is_err());
//! ```
//!
//! ```compile_fail,E0133
//! # use maxsim::format::RawRows;
//! # use maxsim::{Device, DeviceTokens, TokenLayout};
//! let layout = TokenLayout::padded(1, 1, 4).unwrap();
//! let view = DeviceTokens::<f32>::from_raw_parts(&Device::cpu(), RawRows::new(0, 16), layout);
//! assert!(view.is_err());
//! ```
