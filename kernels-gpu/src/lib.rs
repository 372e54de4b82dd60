//! The GPU kernels of maxsim, and the facts that host and device share.
//!
//! The crate is compiled three times: to PTX for sm_80, to PTX for sm_90a, and
//! natively for the host, which reads the variant table and the parameter
//! structs from it.

#![no_std]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch, stdarch_nvptx))]

pub mod element;
pub mod layout;
pub mod params;
pub mod variants;
