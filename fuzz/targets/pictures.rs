//! Page images, of which sizes are read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use maxsim_cli::explain::{Grid, Picture};
use maxsim_fuzz::{Limited, within};

#[global_allocator]
static ALLOCATOR: Limited = Limited;

fuzz_target!(|input: &[u8]| {
    let Some((&[columns, rows, first], bytes)) = input.split_first_chunk() else { return };
    let grid = Grid { columns: columns.into(), rows: rows.into(), first: first.into() };
    within(bytes.len(), || {
        let _ = Picture::new(bytes, grid);
    });
});
