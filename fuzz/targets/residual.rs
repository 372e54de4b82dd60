//! Files of residual-compressed tokens.
#![no_main]

use libfuzzer_sys::fuzz_target;
use maxsim::files::{FileOptions, ResidualFile};
use maxsim_fuzz::{Limited, within};

#[global_allocator]
static ALLOCATOR: Limited = Limited;

fuzz_target!(|input: &[u8]| {
    within(input.len(), || {
        let file = ResidualFile::from_bytes(input.to_vec(), &FileOptions::default());
        if let Ok(tokens) = file.tokens() {
            let n_items = tokens.layout().n_items();
            let _ = file.ids(n_items);
            if tokens.layout().total_len() * (tokens.layout().dim() as u64) < 1 << 16 {
                let _ = tokens.decode::<f32>();
            }
        }
    });
});
