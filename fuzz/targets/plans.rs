//! Shapes of calls: layouts, pairings, limits of devices and options, as a program could have them
//! wrong in any way. A plan is an error, or a kernel that says why it runs; scores of few numbers
//! are there or an error.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use maxsim::format::{ElementType, TokenFormat};
use maxsim::plan::{Access, DeviceLimits, Operand, Plan, Problem};
use maxsim::{Device, Pairing, Result, ScoreOptions, TokenLayout, Tokens};
use maxsim_fuzz::{Limited, within};

#[global_allocator]
static ALLOCATOR: Limited = Limited;

/// A call.
#[derive(Arbitrary, Debug)]
struct Call {
    queries: Layout,
    documents: Layout,
    dim: u16,
    pairing: Pairs,
    format: [u8; 2],
    capability: (u8, u8),
    n_multiprocessors: u16,
    shared_bytes: u32,
    accesses: [(u64, u64, u16); 2],
    uploaded: bool,
    flags: u8,
    splits: Option<u16>,
}

/// How rows are items.
#[derive(Arbitrary, Debug)]
enum Layout {
    Padded { n: u16, len: u16, lengths: Option<Vec<i32>> },
    Packed { rows: u16, offsets: Vec<i64> },
    Scattered { rows: u32, starts: Vec<i64>, lens: Vec<i64> },
    Masked { n: u8, len: u8, mask: Vec<u8> },
}

/// Which queries meet which documents.
#[derive(Arbitrary, Debug)]
enum Pairs {
    Cross,
    Own(u16),
    Candidates(Vec<i64>, u16),
    Pairs(Vec<i32>, Vec<i32>),
}

impl Layout {
    fn make(&self, dim: usize) -> Result<TokenLayout> {
        match self {
            Layout::Padded { n, len, lengths } => {
                let layout = TokenLayout::padded((*n).into(), (*len).into(), dim)?;
                lengths.as_ref().map_or(Ok(layout.clone()), |lengths| layout.with_lengths(lengths))
            }
            Layout::Packed { rows, offsets } => TokenLayout::packed((*rows).into(), dim, offsets),
            Layout::Scattered { rows, starts, lens } => {
                TokenLayout::scattered(*rows as usize, dim, starts, lens)
            }
            Layout::Masked { n, len, mask } => {
                TokenLayout::padded((*n).into(), (*len).into(), dim)?.with_mask(mask)
            }
        }
    }
}

impl Pairs {
    fn make(&self) -> Result<Pairing> {
        match self {
            Pairs::Cross => Ok(Pairing::cross()),
            Pairs::Own(k) => Ok(Pairing::own_candidates((*k).into())),
            Pairs::Candidates(ids, k) => Pairing::candidates(ids, (*k).into()),
            Pairs::Pairs(queries, documents) => Pairing::pairs(queries, documents),
        }
    }
}

/// Formats by number.
const FORMATS: [ElementType; 3] = [ElementType::F16, ElementType::Bf16, ElementType::F32];

/// Most elements of a side, most products and most scores of a call that is scored.
const SCORED_MAX: u64 = 1 << 10;

fuzz_target!(|call: Call| {
    // Items are two numbers each, and may be of no bytes at all: 65 535 of a side.
    let _ = within(1 << 20, || plan(&call));
});

fn plan(call: &Call) -> Result<()> {
    let dim = usize::from(call.dim);
    let (queries, documents) = (call.queries.make(dim)?, call.documents.make(dim)?);
    let pairing = call.pairing.make()?;
    let mut options = ScoreOptions::default()
        .winners(call.flags & 1 != 0)
        .allow_tf32(call.flags & 2 != 0)
        .normalize(call.flags & 4 != 0)
        .consistent(call.flags & 8 != 0);
    options = options.document_splits(call.splits.map(usize::from));
    let problem = Problem::new(&queries, &documents, &pairing)?;
    let formats = call.format.map(|n| TokenFormat::from(FORMATS[usize::from(n) % FORMATS.len()]));
    let limits = DeviceLimits {
        capability: (call.capability.0.into(), call.capability.1.into()),
        n_multiprocessors: call.n_multiprocessors.into(),
        shared_bytes: call.shared_bytes as usize,
    };
    let access = [0, 1].map(|side| match (call.uploaded, call.accesses[side]) {
        (true, _) => Access::uploaded(dim, formats[side]),
        (false, (base, pitch_bytes, n)) => Access { base, pitch_bytes, n_centroids: n.into() },
    });
    if let Some(operand) = TokenFormat::operand(formats[0], formats[1])
        && let Ok(plan) = Plan::choose(&problem, operand, &limits, access, &options)
    {
        check(&plan, operand, &limits, &options);
    }
    score(&queries, &documents, &pairing, &options)
}

fn check(plan: &Plan, operand: Operand, limits: &DeviceLimits, options: &ScoreOptions) {
    let variant = plan.variant().expect("plans for devices name kernels");
    assert_eq!(variant.operand, operand);
    assert!(variant.arch.runs_on(limits.capability));
    assert!(plan.document_splits() >= 1);
    assert!(options.document_splits.is_none_or(|most| plan.document_splits() <= most));
    assert!(plan.rejected().iter().all(|(name, why)| *name != plan.name() && !why.is_empty()));
}

fn score(
    queries: &TokenLayout,
    documents: &TokenLayout,
    pairing: &Pairing,
    options: &ScoreOptions,
) -> Result<()> {
    let elements = [queries, documents].map(|layout| layout.rows() as u64 * layout.dim() as u64);
    let products = queries.total_len().saturating_mul(documents.total_len());
    let products = products.saturating_mul(documents.dim() as u64);
    let scores = queries.n_items() as u64 * documents.n_items() as u64;
    if elements.into_iter().chain([products, scores]).any(|n| n > SCORED_MAX) {
        return Ok(());
    }
    let ones = elements.map(|n| vec![1.0f32; n as usize]);
    let queries = Tokens::from_layout(&ones[0][..], queries.clone())?;
    let documents = Tokens::from_layout(&ones[1][..], documents.clone())?;
    let scores = Device::cpu().score_with(&queries, &documents, pairing, options)?;
    assert!(scores.values().iter().all(|score| score.is_finite()));
    Ok(())
}
