//! The driver's status codes, and the errors they become.

use std::ffi::{CStr, c_char};
use std::ptr;

use super::symbols::raw;
use crate::error::Error;

pub(in crate::cuda) const INVALID_VALUE: u32 = 1;
pub(in crate::cuda) const OUT_OF_MEMORY: u32 = 2;
const STUB_LIBRARY: u32 = 34;
pub(in crate::cuda) const NO_DEVICE: u32 = 100;
pub(in crate::cuda) const UNSUPPORTED_PTX_VERSION: u32 = 222;
pub(in crate::cuda) const NOT_FOUND: u32 = 500;
pub(in crate::cuda) const NOT_READY: u32 = 600;
const UNKNOWN: u32 = 999;

/// Whether every later call of this process on the device fails the same way: "to continue
/// using CUDA, the process must be terminated and relaunched".
pub(in crate::cuda) fn is_sticky(code: u32) -> bool {
    const STICKY: &[u32] = &[
        4,   // deinitialised: the process is ending
        214, // uncorrectable ECC error
        220, // uncorrectable NVLink error
        226, // error contained to this process
        700, // illegal address
        702, // launch timeout
        709, // context destroyed
        710, // device assertion
        714, // hardware stack error
        715, // illegal instruction
        716, // misaligned address
        717, // invalid address space
        718, // invalid program counter
        719, // launch failed
        721, // tensor memory leak
    ];
    STICKY.contains(&code)
}

/// Whether the driver's status says that it cannot run a module, which another image of the same
/// kernel may mend: no fault of the device's or of the call's.
pub(in crate::cuda) fn is_refused_image(code: u32) -> bool {
    const REFUSED: &[u32] = &[
        200, // invalid image
        209, // no binary for the GPU
        218, // invalid PTX
        UNSUPPORTED_PTX_VERSION,
        300, // invalid source
        801, // not supported
    ];
    REFUSED.contains(&code)
}

/// The code, or `CUDA_ERROR_UNKNOWN` where `cust`'s enum of CUDA 11.4 lacks it: an enum of
/// another value would be undefined behaviour there.
pub(in crate::cuda) fn known_to_cust(code: u32) -> u32 {
    match code {
        0..=8 | 34 | 100..=102 | 200..=202 | 205..=224 | 300..=304 | 400 | 401 => code,
        500 | 600 | 700..=705 | 708..=720 | 800..=809 | 900..=911 => code,
        _ => UNKNOWN,
    }
}

/// The driver's name and description of a code.
pub(in crate::cuda) fn describe(code: u32) -> String {
    let text = |get: unsafe fn(u32, *mut *const c_char) -> u32| {
        let mut text = ptr::null();
        // SAFETY: `text` outlives the call; the driver's strings are static.
        if unsafe { get(code, &mut text) } != 0 || text.is_null() {
            return None;
        }
        // SAFETY: the driver set it to a zero-terminated string that lives for ever.
        Some(unsafe { CStr::from_ptr(text) }.to_string_lossy())
    };
    match (text(raw::cuGetErrorName), text(raw::cuGetErrorString)) {
        (Some(name), Some(description)) => format!("{name}: {description}"),
        (Some(name), None) => name.into_owned(),
        _ => "an error that the driver does not know".into(),
    }
}

/// The error of a call before there is a device.
pub(in crate::cuda) fn error(call: &'static str, code: u32) -> Error {
    match code {
        STUB_LIBRARY => Error::NoDriver {
            why: "the libcuda.so.1 that was found is the toolkit's stub for linking".into(),
            source: None,
        },
        OUT_OF_MEMORY => Error::DeviceMemory { requested_bytes: 0, free_bytes: None },
        _ => Error::Driver { call, code, message: describe(code) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_sticky_and_refusals_are_not() {
        for code in [4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721] {
            assert!(is_sticky(code), "{code}");
        }
        for code in [0, 1, 2, 46, 100, 222, 400, 500, 600, 701, 801, 900, 912, 999] {
            assert!(!is_sticky(code), "{code}");
        }
    }

    #[test]
    fn a_refused_image_is_no_fault_and_no_lack_of_memory() {
        for code in [200, 209, 218, 222, 300, 801] {
            assert!(is_refused_image(code) && !is_sticky(code), "{code}");
        }
        for code in [0, 1, OUT_OF_MEMORY, 500, 700, 999] {
            assert!(!is_refused_image(code), "{code}");
        }
    }

    #[test]
    fn cust_sees_only_codes_of_its_enum() {
        for code in [0, 2, 100, 222, 700, 719, 720, 911, 999] {
            assert_eq!(known_to_cust(code), code);
        }
        // Device unavailable, contained error, tensor memory leak, invalid cluster size.
        for code in [46, 226, 721, 912, u32::MAX] {
            assert_eq!(known_to_cust(code), UNKNOWN);
        }
    }
}
