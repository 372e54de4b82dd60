//! Roofs of one core.

use std::ffi::c_char;

use super::done;
use super::handle::string;
use crate::object::host_slice;
use crate::roofs;

/// Makes at least `n` fused multiply-adds of f32 by the instruction set of a name, `portable`,
/// `avx2` or `avx512`, on this thread, and writes how many they were; 0, or -1 for an error.
///
/// # Safety
/// `instructions` must be a C string, and `made` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_fused_multiply_adds(
    instructions: *const c_char,
    n: u64,
    made: *mut f64,
) -> i32 {
    // SAFETY: the caller's promises.
    done(|| unsafe {
        made.write(roofs::multiply_adds(string(instructions)?, n)?);
        Ok(())
    })
}

/// Reads `n` words of 8 bytes at a host address on this thread, and writes what depends on them
/// all; 0, or -1 for an error.
///
/// # Safety
/// The memory must be readable, and `found` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_read_host(address: u64, n: u64, found: *mut f64) -> i32 {
    // SAFETY: the caller's promises.
    done(|| unsafe {
        found.write(roofs::read(host_slice::<u64>(address, n as usize)?));
        Ok(())
    })
}
