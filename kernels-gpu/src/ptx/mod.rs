//! The instructions: one instruction, or one inseparable group, per function.
//!
//! This is the only place with `asm!`. Nothing here knows what it is used for.
//!
//! Three rules hold throughout. Instructions that the threads of a warp execute
//! together are never `pure`: the compiler does not know that they are convergent
//! and would sink them into divergent branches. Predicated side effects are
//! predicated inside the `asm!`, so that there is no branch to duplicate.
//! Shared memory is addressed by its 32-bit window address.

mod access;
pub mod atomic;
pub mod barrier;
pub mod convert;
pub mod copy;
pub mod element;
pub mod global;
pub mod math;
pub mod mma;
pub mod shared;
pub mod thread;
pub mod warp;
#[cfg(maxsim_arch = "sm_90a")]
pub mod wgmma;

/// Address of a kernel's first parameter, as a generic address.
///
/// Taking a reference to the parameter would copy it to local memory; TMA wants the
/// tensor map where the driver put it.
#[cfg(maxsim_arch = "sm_90a")]
macro_rules! parameter_address {
    ($entry:ident) => {{
        let address: u64;
        // SAFETY: computes an address; the symbol is the entry's own parameter.
        unsafe {
            core::arch::asm!(
                concat!("mov.b64 {0}, ", stringify!($entry), "_param_0;"),
                "cvta.param.u64 {0}, {0};",
                out(reg64) address,
                options(pure, nomem, nostack),
            );
        }
        address
    }};
}
#[cfg(maxsim_arch = "sm_90a")]
pub(crate) use parameter_address;
