//! Index folders, whose files the input is divided into.
#![no_main]

use std::cell::OnceCell;

use libfuzzer_sys::fuzz_target;
use maxsim_cli::residual::read_index;
use maxsim_fuzz::{Folder, Limited, within};

#[global_allocator]
static ALLOCATOR: Limited = Limited;

/// Files of an index of one chunk, of either kind.
const NAMES: [&[&str]; 2] = [
    &[
        "metadata.json",
        "centroids.npy",
        "bucket_cutoffs.npy",
        "bucket_weights.npy",
        "doclens.0.json",
        "0.codes.npy",
        "0.residuals.npy",
        "merged_codes.npy",
        "merged_codes.manifest.json",
    ],
    &[
        "metadata.json",
        "centroids.pt",
        "buckets.pt",
        "doclens.0.json",
        "0.codes.pt",
        "0.residuals.pt",
    ],
];

thread_local! {
    static FOLDERS: OnceCell<[Folder; 2]> = const { OnceCell::new() };
}

fuzz_target!(|input: &[u8]| {
    let Some((&choice, parts)) = input.split_first() else { return };
    let kind = usize::from(choice % 2);
    FOLDERS.with(|folders| {
        let folder = &folders.get_or_init(|| [Folder::new(), Folder::new()])[kind];
        folder.fill(NAMES[kind], parts);
        within(parts.len(), || {
            let _ = read_index(folder.path());
        });
    });
});
