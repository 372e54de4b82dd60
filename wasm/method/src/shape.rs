//! What a shape costs: floating-point operations, bytes with the table of similarities and without
//! it, the least time that a card's rates allow, and the kernel that the library would run.

use maxsim::format::{ElementType, TokenFormat};
use maxsim::plan::{Access, DeviceLimits, Plan, Problem};
use maxsim::{Pairing, ScoreOptions, TokenLayout};
use serde::{Deserialize, Serialize};

/// A shape as a reader types it in, and the rates of a card.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    n_queries: usize,
    query_len: usize,
    n_documents: usize,
    document_len: usize,
    dim: usize,
    /// `f16`, `bf16`, or `f32`, whose products are rounded to TF32.
    element: ElementName,
    /// Matrix products of the element type, in 10¹² operations a second.
    tflop_per_s: f64,
    /// Reads of memory, in 10¹² bytes a second.
    tb_per_s: f64,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ElementName {
    F16,
    Bf16,
    F32,
}

/// What it costs.
#[derive(Serialize)]
pub struct Costs {
    flop: f64,
    bytes: Bytes,
    /// Operations for each byte that the fused kernel moves, and where the roof has its corner.
    intensity: f64,
    ridge: f64,
    /// The least time of the products, in ms.
    arithmetic_ms: f64,
    /// The least time of the bytes, in ms: fused, and with the table.
    fused_memory_ms: f64,
    table_memory_ms: f64,
    /// The least time of all: the larger of two.
    fused_ms: f64,
    table_ms: f64,
    plan: Planned,
}

/// Bytes that a call moves.
#[derive(Clone, Copy, Serialize)]
pub struct Bytes {
    /// Tokens of both sides, read once.
    pub tokens: f64,
    /// The table of similarities, in the tokens' element type.
    pub table: f64,
    /// All that a fused kernel moves: tokens, and scores of 4 bytes.
    pub fused: f64,
    /// All that is moved with the table: it is written and read again, and so are its maxima.
    pub with_table: f64,
    /// What gradients of the table add, as reverse-mode differentiation has them: the gradient of
    /// the table is written, and read by the two products.
    pub table_backward: f64,
    /// What winners add instead: 4 bytes a query token and pair, written, and read twice.
    pub winners: f64,
}

impl Bytes {
    /// The bytes of `[queries, tokens of each, documents, tokens of each]`.
    pub fn of(
        [n_queries, query_len, n_documents, document_len]: [f64; 4],
        dim: usize,
        element_bytes: usize,
    ) -> Bytes {
        let element = element_bytes as f64;
        let maxima = n_queries * query_len * n_documents;
        let table = maxima * document_len * element;
        let rows = n_queries * query_len + n_documents * document_len;
        let tokens = rows * dim as f64 * element;
        let fused = tokens + 4.0 * n_queries * n_documents;
        Bytes {
            tokens,
            table,
            fused,
            with_table: fused + 2.0 * table + 2.0 * maxima * element,
            table_backward: 3.0 * table,
            winners: 3.0 * 4.0 * maxima,
        }
    }
}

/// The kernel that the library would run on an H100 or H200.
#[derive(Serialize)]
struct Planned {
    name: &'static str,
    query_tile: usize,
    document_tile: usize,
    stages: usize,
    threads: usize,
    document_splits: usize,
    /// Kernels that were looked at and do not run.
    n_rejected: usize,
}

/// A shape that is refused, and why.
#[derive(Serialize)]
pub struct Refused {
    /// What to change.
    pub error: String,
}

/// Most items of a side: layouts have some bytes of each.
const ITEMS_MAX: usize = 1_000_000;

/// What a shape costs, or why there is no such call.
pub fn costs(shape: &Shape) -> Result<Costs, String> {
    let named = [
        ("queries", shape.n_queries, ITEMS_MAX),
        ("tokens of a query", shape.query_len, ITEMS_MAX),
        ("documents", shape.n_documents, ITEMS_MAX),
        ("tokens of a document", shape.document_len, ITEMS_MAX),
        ("elements of a token", shape.dim, 4096),
    ];
    for (what, n, most) in named {
        if !(1..=most).contains(&n) {
            return Err(format!("{what}: expected 1 to {most}, found {n}"));
        }
    }
    if !(shape.tflop_per_s > 0.0 && shape.tb_per_s > 0.0) {
        return Err("rates: expected more than 0".into());
    }
    let plan = planned(shape).map_err(|error| error.to_string())?;
    let numbers = [shape.n_queries, shape.query_len, shape.n_documents, shape.document_len];
    let numbers = numbers.map(|n| n as f64);
    let bytes = Bytes::of(numbers, shape.dim, shape.element.format().size_bytes());
    let flop = 2.0 * numbers.iter().product::<f64>() * shape.dim as f64;
    let (flops, rate) = (shape.tflop_per_s * 1e12, shape.tb_per_s * 1e12);
    let arithmetic_ms = flop / flops * 1e3;
    let [fused_memory_ms, table_memory_ms] =
        [bytes.fused, bytes.with_table].map(|n| n / rate * 1e3);
    Ok(Costs {
        flop,
        intensity: flop / bytes.fused,
        ridge: flops / rate,
        arithmetic_ms,
        fused_memory_ms,
        table_memory_ms,
        fused_ms: arithmetic_ms.max(fused_memory_ms),
        table_ms: arithmetic_ms.max(table_memory_ms),
        bytes,
        plan,
    })
}

impl ElementName {
    fn format(self) -> TokenFormat {
        TokenFormat::from(match self {
            ElementName::F16 => ElementType::F16,
            ElementName::Bf16 => ElementType::Bf16,
            ElementName::F32 => ElementType::F32,
        })
    }
}

/// The library's own plan, for the limits that an H100 and an H200 have in common.
fn planned(shape: &Shape) -> maxsim::Result<Planned> {
    let limits =
        DeviceLimits { capability: (9, 0), n_multiprocessors: 132, shared_bytes: 227 << 10 };
    let queries = TokenLayout::padded(shape.n_queries, shape.query_len, shape.dim)?;
    let documents = TokenLayout::padded(shape.n_documents, shape.document_len, shape.dim)?;
    let cross = Pairing::cross();
    let problem = Problem::new(&queries, &documents, &cross)?;
    let format = shape.element.format();
    let operand = TokenFormat::operand(format, format).expect("a format goes with itself");
    let access = [Access::uploaded(shape.dim, format); 2];
    let options = ScoreOptions::default().allow_tf32(true);
    let plan = Plan::choose(&problem, operand, &limits, access, &options)?;
    let variant = plan.variant().expect("plans for devices name kernels");
    Ok(Planned {
        name: variant.name,
        query_tile: variant.query_tile,
        document_tile: variant.document_tile,
        stages: variant.stages,
        threads: variant.threads,
        document_splits: plan.document_splits(),
        n_rejected: plan.rejected().len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(numbers: [usize; 5]) -> Shape {
        let [n_queries, query_len, n_documents, document_len, dim] = numbers;
        let element = ElementName::F16;
        let (tflop_per_s, tb_per_s) = (755.0, 4.66);
        Shape {
            n_queries,
            query_len,
            n_documents,
            document_len,
            dim,
            element,
            tflop_per_s,
            tb_per_s,
        }
    }

    #[test]
    fn a_page_of_pages_costs_what_the_records_say() {
        let costs = costs(&shape([1, 1024, 10_000, 1024, 128])).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(costs.flop, 2_684_354_560_000.0);
        assert_eq!(costs.bytes.table, 20_971_520_000.0);
        assert!((costs.arithmetic_ms - 3.555).abs() < 0.01);
        assert_eq!(costs.fused_ms, costs.arithmetic_ms);
        assert!(costs.table_ms > 9.0);
        assert!(costs.plan.name.contains("sm90_f16_d128"));
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let error = |numbers| costs(&shape(numbers)).err().unwrap();
        assert_eq!(error([0, 32, 10, 300, 128]), "queries: expected 1 to 1000000, found 0");
        assert!(error([1, 32, 10, 300, 5000]).starts_with("elements of a token: "));
        assert!(!error([1, 1_000_000, 1_000_000, 1_000_000, 128]).is_empty());
    }
}
