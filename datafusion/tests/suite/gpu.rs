//! The functions on GPUs: scores do not depend on batches, and are the CPU's but for rounding.

use datafusion::arrow::array::{Array, ArrayRef};
use datafusion::logical_expr::ColumnarValue;
use maxsim::format::{ScaleType, TokenFormat};
use maxsim::{AnyTokens, Device};

use crate::data::{bits, call, call_on, column, constant, tokens};

/// The scores of a GPU in batches of these lengths.
fn scores(
    device: &Device,
    name: &str,
    query: &ColumnarValue,
    documents: &[ArrayRef],
    batches: &[usize],
) -> Vec<Option<u32>> {
    let (mut found, mut start) = (Vec::new(), 0);
    for &len in batches {
        let slices = documents.iter().map(|column| column.slice(start, len).into());
        let args: Vec<ColumnarValue> = [query.clone()].into_iter().chain(slices).collect();
        found.extend(bits(call_on(device, name, &args, len).unwrap()));
        start += len;
    }
    found
}

#[test]
fn gpus_score_as_the_cpu_in_any_batches() {
    let devices = (0..Device::n_cuda().unwrap_or(0)).filter_map(|i| Device::cuda(i).ok());
    let devices: Vec<Device> = devices.collect();
    if devices.is_empty() {
        println!("SKIPPED (no CUDA device)");
    }
    let lengths: Vec<usize> = (0..700).map(|i| if i < 350 { 50 } else { i % 90 }).collect();
    let documents: AnyTokens<'_> = tokens(2, &lengths, 128).into();
    let codes = documents.quantize(TokenFormat::Int8, ScaleType::F16).unwrap();
    let plain = vec![column(&documents, "tokens")];
    let coded = vec![column(&codes, "codes"), column(&codes, "scales")];
    for device in devices {
        for query_len in [1, 32, 200] {
            let query = constant(&column(&tokens(1, &[query_len], 128).into(), "tokens"), 0);
            for (name, documents) in [("maxsim", &plain), ("maxsim_int8", &coded)] {
                let whole = scores(&device, name, &query, documents, &[700]);
                for batches in [&[350, 0, 350][..], &[1, 99, 250, 300, 50]] {
                    assert_eq!(scores(&device, name, &query, documents, batches), whole, "{name}");
                }
                let columns = documents.iter().map(|column| column.clone().into());
                let args: Vec<_> = [query.clone()].into_iter().chain(columns).collect();
                let expected = bits(call(name, &args, 700).unwrap());
                for (found, expected) in whole.into_iter().zip(expected) {
                    let [found, expected] = [found, expected].map(|x| f32::from_bits(x.unwrap()));
                    assert!((found - expected).abs() <= 1e-4 * expected.abs().max(1.0), "{name}");
                }
            }
        }
    }
}
