//! The functions on GPUs: their scores are those of the library on the same device.

use datafusion::logical_expr::ColumnarValue;
use maxsim::format::{ScaleType, TokenFormat};
use maxsim::{AnyTokens, Device, Pairing};

use crate::data::{bits, call_on, column, constant, tokens};

#[test]
fn gpus_score_as_the_library() {
    let devices = (0..Device::n_cuda().unwrap_or(0)).filter_map(|i| Device::cuda(i).ok());
    let devices: Vec<Device> = devices.collect();
    if devices.is_empty() {
        println!("SKIPPED (no CUDA device)");
    }
    let queries: AnyTokens<'_> = tokens(1, &[32], 128).into();
    let documents: AnyTokens<'_> = tokens(2, &[50; 700], 128).into();
    let codes = documents.quantize(TokenFormat::Int8, ScaleType::F16).unwrap();
    let query_codes = queries.quantize(TokenFormat::Int8, ScaleType::F32).unwrap();
    let query = constant(&column(&queries, "tokens"), 0);
    for device in devices {
        let expected = |queries: &AnyTokens<'_>, documents: &AnyTokens<'_>| -> Vec<_> {
            let scores =
                device.score_any(queries, documents, &Pairing::cross(), &Default::default());
            scores.unwrap().values().iter().map(|score| Some(score.to_bits())).collect()
        };
        let args = [query.clone(), column(&documents, "tokens").into()];
        let found = bits(call_on(&device, "maxsim", &args, 700).unwrap());
        assert_eq!(found, expected(&queries, &documents), "{device}");
        let [codes_column, scales] = ["codes", "scales"].map(|name| column(&codes, name));
        let args: [ColumnarValue; 3] = [query.clone(), codes_column.into(), scales.into()];
        let found = bits(call_on(&device, "maxsim_int8", &args, 700).unwrap());
        assert_eq!(found, expected(&query_codes, &codes), "{device}");
    }
}
