//! Files of token embeddings: whatever the bytes, they are tokens or an error, and tokens of few
//! numbers can be scored.
#![no_main]

use libfuzzer_sys::fuzz_target;
use maxsim::files::{Contents, FileFormat, FileOptions, TokenFile, TrailingZeros};
use maxsim::format::TokenFormat;
use maxsim::{Device, Error, Pairing, ScoreOptions};
use maxsim_fuzz::{Limited, within};

#[global_allocator]
static ALLOCATOR: Limited = Limited;

/// Most products of a scored file with itself.
const PRODUCTS_MAX: u64 = 1 << 16;

fuzz_target!(|input: &[u8]| {
    let Some((&choice, bytes)) = input.split_first() else { return };
    let format = [FileFormat::Safetensors, FileFormat::Npy, FileFormat::Npz][choice as usize % 3];
    let mut options = FileOptions::default();
    match choice / 3 % 4 {
        0 => {}
        1 => options = options.trailing_zeros(TrailingZeros::Pad),
        2 => options = options.trailing_zeros(TrailingZeros::Tokens),
        _ => options = options.tensor("x").ignore("mask"),
    }
    within(bytes.len(), || {
        let _ = Contents::parse(bytes, format);
        if let Ok(file) = TokenFile::from_bytes(bytes.to_vec(), format, &options) {
            read(&file);
        }
    });
});

fn read(file: &TokenFile) {
    let layout = file.layout();
    let _ = (file.ids(), file.note("format"), file.warnings().len(), file.size_bytes());
    for item in 0..layout.n_items().min(64) {
        assert!(layout.item_len(item) <= layout.max_len());
        if layout.item_len(item) > 0 {
            let _ = file.stored_token(item, layout.item_len(item) - 1);
        }
    }
    let n = layout.total_len();
    let is_small = n.saturating_mul(n).saturating_mul(layout.dim() as u64) <= PRODUCTS_MAX
        && layout.n_items() <= 64;
    if let Ok(tokens) = file.all()
        && is_small
    {
        let (cross, options) = (Pairing::cross(), ScoreOptions::default().winners(true));
        let scores = Device::cpu().score_any(&tokens, &tokens, &cross, &options);
        let is_operand = TokenFormat::operand(tokens.format(), tokens.format()).is_some();
        match scores {
            Ok(scores) => assert_eq!(scores.values().len(), layout.n_items().pow(2)),
            // Scales are looked at where they are used, row by row.
            Err(Error::Shape { argument: "scales", .. }) => {}
            // Affine codes are documents alone.
            Err(Error::Unsupported { .. }) => assert!(!is_operand),
            Err(error) => panic!("tokens of a file go with themselves: {error}"),
        }
    }
}
