//! The GPU kernels of maxsim, and the facts that host and device share.
//!
//! The crate is compiled three times: to PTX for sm_80, to PTX for sm_90a, and
//! natively for the host, which reads the variant table and the parameter
//! structs from it.

#![no_std]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch, stdarch_nvptx))]
#![cfg_attr(target_arch = "nvptx64", allow(named_asm_labels))]

#[cfg(not(target_arch = "nvptx64"))]
pub mod archive;
pub mod decode;
pub mod e4m3;
pub mod element;
pub mod gradient;
pub mod layout;
pub mod loss;
pub mod params;
pub mod quantize;
pub mod rescore;
pub mod residual;
pub mod residual_gradient;
pub mod shares;
pub mod tf32;
pub mod variants;

#[cfg(target_arch = "nvptx64")]
mod chunks;
#[cfg(all(target_arch = "nvptx64", maxsim_arch = "sm_80"))]
mod combine;
#[cfg(all(target_arch = "nvptx64", maxsim_arch = "sm_80"))]
mod decoded_norms;
#[cfg(target_arch = "nvptx64")]
mod entry;
#[cfg(target_arch = "nvptx64")]
mod norms;
#[cfg(target_arch = "nvptx64")]
mod ptx;
#[cfg(all(target_arch = "nvptx64", maxsim_arch = "sm_80"))]
mod read;
#[cfg(target_arch = "nvptx64")]
mod reduce;
#[cfg(target_arch = "nvptx64")]
mod rows;
#[cfg(all(target_arch = "nvptx64", maxsim_arch = "sm_80"))]
mod sm80;
#[cfg(all(target_arch = "nvptx64", maxsim_arch = "sm_90a"))]
mod sm90;
#[cfg(all(target_arch = "nvptx64", maxsim_arch = "sm_80"))]
mod sum;
#[cfg(target_arch = "nvptx64")]
mod work;
