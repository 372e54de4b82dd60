//! The GPU kernels of maxsim, and what host and device share.
//!
//! The crate is compiled three times: to PTX for sm_80, to PTX for sm_90a, and natively for the
//! host, which reads the tables of kernels and the parameter structs from it.
//!
//! Layers, from the lowest; imports go down, never sideways or up:
//!
//! ```text
//! abi                host/device ABI: parameter structs, shared-memory layouts, number formats
//! archive            what the file of compressed kernel images looks like
//! table              every kernel with its resources: forward kernels, and all others
//! ptx                the instructions: the only asm!
//! primitives         what the kernels of several families use: tiles, row vectors, accumulators
//! sm80, sm90         the forward kernels by instruction set
//! backward, loss, quantize, rescore, …          the other kernels
//! projection, chamfer       kernels of both instruction sets, of the parts of theirs
//! entry              the PTX entry points
//! ```

#![no_std]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch, stdarch_nvptx))]
#![cfg_attr(target_arch = "nvptx64", allow(named_asm_labels))]

pub mod abi;
#[cfg(not(target_arch = "nvptx64"))]
pub mod archive;
pub mod table;

#[cfg(target_arch = "nvptx64")]
mod backward;
#[cfg(all(target_arch = "nvptx64", maxsim_arch = "sm_80"))]
mod bandwidth;
#[cfg(target_arch = "nvptx64")]
mod chamfer;
#[cfg(all(target_arch = "nvptx64", maxsim_arch = "sm_80"))]
mod combine_splits;
#[cfg(all(target_arch = "nvptx64", maxsim_arch = "sm_80"))]
mod decoded_rows;
#[cfg(target_arch = "nvptx64")]
mod entry;
#[cfg(all(target_arch = "nvptx64", maxsim_arch = "sm_80"))]
mod loss;
#[cfg(target_arch = "nvptx64")]
mod primitives;
#[cfg(target_arch = "nvptx64")]
mod projection;
#[cfg(target_arch = "nvptx64")]
mod ptx;
#[cfg(all(target_arch = "nvptx64", maxsim_arch = "sm_80"))]
mod quantize;
#[cfg(all(target_arch = "nvptx64", maxsim_arch = "sm_80"))]
mod rescore;
#[cfg(all(target_arch = "nvptx64", maxsim_arch = "sm_80"))]
mod search;
#[cfg(all(target_arch = "nvptx64", maxsim_arch = "sm_80"))]
mod segments;
#[cfg(all(target_arch = "nvptx64", maxsim_arch = "sm_80"))]
mod sm80;
#[cfg(all(target_arch = "nvptx64", maxsim_arch = "sm_90a"))]
mod sm90;
#[cfg(all(target_arch = "nvptx64", maxsim_arch = "sm_80"))]
mod sum_partials;
#[cfg(all(target_arch = "nvptx64", maxsim_arch = "sm_80"))]
mod top_k;
#[cfg(all(target_arch = "nvptx64", maxsim_arch = "sm_80"))]
mod xtr;
