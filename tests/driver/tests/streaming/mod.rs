//! Searches over documents that pass by, with the stand-in for the driver: what is allocated, what
//! is copied to where, and what happens where memory ends. Nothing is computed.

use std::panic::{AssertUnwindSafe, catch_unwind};

use half::f16;
use maxsim::format::{Int8, Scales};
use maxsim::residual::{
    Arrangement, BitOrder, Centroids, ResidualCodec, ResidualSource, ResidualTokens,
};
use maxsim::streaming::{Generated, StreamOptions, TokenReader};
use maxsim::{Device, Devices, Error, Interrupt, ScoreOptions, TokenLayout, Tokens};

use super::stand_in::{ALLOCATIONS, COPIES, LAUNCHES, StandIn, in_stand_in};

const DIM: usize = 128;

/// Bytes of a document of ten tokens of f16.
const DOCUMENT_BYTES: u64 = 10 * DIM as u64 * 2;

fn device() -> Device {
    Device::cuda(0).expect("the stand-in's device")
}

fn numbers(n: usize) -> Vec<f16> {
    (0..n).map(|i| f16::from_bits((i * 2654435761 % 30000) as u16)).collect()
}

/// A search of generated documents in chunks of `at_once`.
fn search(device: &Device, n: usize, at_once: u64) -> maxsim::Result<()> {
    let query = numbers(32 * DIM);
    let query = Tokens::padded(&query, 1, 32, DIM)?;
    let layout = TokenLayout::padded(n, 10, DIM)?;
    let fill = |rows: std::ops::Range<usize>, to: &mut [f16]| {
        for (row, to) in rows.zip(to.chunks_exact_mut(DIM)) {
            to.fill(f16::from_bits(row as u16 % 30000));
        }
        Ok(())
    };
    let source = Generated::<f16, _>::new(layout, fill);
    let options = StreamOptions::default().buffer_bytes(at_once * DOCUMENT_BYTES).threads(2);
    let found = device.search_stream(&query, &source, 10, &options)?;
    assert_eq!(found.n_chunks as u64, (n as u64).div_ceil(at_once));
    assert_eq!(found.bytes, n as u64 * DOCUMENT_BYTES);
    Ok(())
}

/// Chunks allocate nothing, and take turns in three buffers.
#[test]
fn ten_times_the_documents_take_the_same_memory() {
    in_stand_in("streaming::ten_times_the_documents_take_the_same_memory", |driver| {
        let device = device();
        search(&device, 2000, 50).expect("a search");
        let [(few, few_copies), (many, many_copies)] = [2000, 20_000].map(|n| {
            driver.clear();
            search(&device, n, 50).expect("a search");
            (driver.count(ALLOCATIONS), driver.count(COPIES))
        });
        assert!(many <= few + 8, "{few} allocations of 40 chunks, {many} of 400");
        assert!(many_copies > 5 * few_copies);
    });
}

/// More documents of a query than a device selects: the scores of each chunk are read, in as much
/// memory for any number of chunks.
#[test]
fn scores_of_chunks_are_read_where_the_device_selects_no_more() {
    let name = "streaming::scores_of_chunks_are_read_where_the_device_selects_no_more";
    in_stand_in(name, |driver| {
        let device = device();
        let query = numbers(32 * DIM);
        let query = Tokens::padded(&query, 1, 32, DIM).expect("a query");
        let search = |n: usize| {
            let layout = TokenLayout::padded(n, 10, DIM).expect("a layout");
            let source = Generated::<f16, _>::new(layout, |_, to| {
                to.fill(f16::ONE);
                Ok(())
            });
            let options = StreamOptions::default().buffer_bytes(500 * DOCUMENT_BYTES).threads(2);
            driver.clear();
            let found = device.search_stream(&query, &source, 5000, &options).expect("a search");
            assert_eq!((found.n_chunks, found.rankings[0].ranked.len()), (n / 500, 5000));
            driver.count(ALLOCATIONS)
        };
        let _ = search(6000);
        let [few, many] = [6000, 30_000].map(search);
        assert!(many <= few + 8, "{few} allocations of 12 chunks, {many} of 60");
    });
}

/// Rows at their pitch, scales and masks of each of three chunks are where the device has memory.
/// (Small buffers are kept for the next call.)
#[test]
fn rows_scales_and_masks_reach_the_device() {
    in_stand_in("streaming::rows_scales_and_masks_reach_the_device", |driver| {
        let device = device();
        let (n, len, dim) = (30, 7, 100);
        let codes: Vec<i8> = (0..n * len * dim).map(|i| (i * 7919 % 255) as i8).collect();
        let scales: Vec<f32> = (0..n * len).map(|row| 1.0 + row as f32 / 512.0).collect();
        let mask: Vec<u8> = (0..n * len).map(|row| (row * 31 % 5) as u8).collect();
        let layout = TokenLayout::padded(n, len, dim).expect("a layout");
        let source = Generated::<Int8, _>::new(layout, |rows, to| {
            to.copy_from_slice(&codes[rows.start * dim..rows.end * dim]);
            Ok(())
        });
        let source = source.with_mask(&mask[..]).with_scales(Scales::F32(scales[..].into()));
        let query = vec![1.0f32; 3 * dim];
        let query = Tokens::padded(&query, 1, 3, dim).expect("a query");
        let query = query.quantize::<Int8>(Default::default()).expect("codes");
        // Codes at a pitch of 112 bytes, the word of a scale, a byte of the mask.
        let bytes_per_document = len as u64 * (112 + 4 + 1);
        let options = StreamOptions::default().buffer_bytes(10 * bytes_per_document);
        let found = device.search_stream(&query, &source, 5, &options).expect("a search");
        assert_eq!(found.n_chunks, 3);
        for chunk in 0..3 {
            let rows = chunk * 10 * len..(chunk + 1) * 10 * len;
            let mut pitched = Vec::new();
            for row in rows.clone() {
                pitched.extend(codes[row * dim..][..dim].iter().map(|&code| code as u8));
                pitched.extend([0; 12]);
            }
            assert!(driver.holds(&pitched), "rows of chunk {chunk}");
            let words: Vec<u8> =
                scales[rows.clone()].iter().flat_map(|scale| scale.to_le_bytes()).collect();
            assert!(driver.holds(&words), "scales of chunk {chunk}");
            assert!(driver.holds(&mask[rows]), "mask of chunk {chunk}");
            pitched[3] ^= 1;
            assert!(!driver.holds(&pitched), "the stand-in looks at all bytes");
        }
    });
}

/// Page-locked rows are copied as they lie, a chunk at a time: no thread stages them.
#[test]
fn page_locked_rows_are_copied_at_once() {
    in_stand_in("streaming::page_locked_rows_are_copied_at_once", |driver| {
        let device = device();
        let n = 60;
        let mut rows = device.page_locked::<f16>(n * 10 * DIM).expect("memory");
        rows.copy_from_slice(&numbers(n * 10 * DIM));
        let pageable = rows.to_vec();
        let query = numbers(32 * DIM);
        let query = Tokens::padded(&query, 1, 32, DIM).expect("a query");
        let options = StreamOptions::default().buffer_bytes(20 * DOCUMENT_BYTES).threads(1);
        let [locked, staged] = [&rows[..], &pageable].map(|rows| {
            let documents = Tokens::padded(rows, n, 10, DIM).expect("documents");
            // Uploads have page-locked memory of their own.
            let query = device.upload(&query).expect("an upload");
            let before = driver.page_locked_bytes();
            let found = device.search_stream(&query, &documents, 5, &options);
            assert_eq!(found.expect("a search").n_chunks, 3);
            for chunk in rows.chunks(20 * 10 * DIM) {
                assert!(driver.holds(bytemuck::cast_slice(chunk)));
            }
            driver.page_locked_bytes() - before
        });
        // Lists and results have some.
        assert!(locked < 4 << 20, "no pieces are made: {locked} bytes");
        assert!(staged >= 8 << 20, "pieces are made: {staged} bytes");
    });
}

/// Page-locked pieces are kept for the next search, those of eight threads, whatever its rows are.
#[test]
fn the_next_search_page_locks_nothing() {
    in_stand_in("streaming::the_next_search_page_locks_nothing", |driver| {
        let device = device();
        let query = numbers(32 * DIM);
        let query = Tokens::padded(&query, 1, 32, DIM).expect("a query");
        let query = query.quantize::<Int8>(Default::default()).expect("codes");
        // Enough rows for two pieces of each of eight threads, and as many again.
        let (n, len) = (1000, 1024);
        let (codes, scales) = (vec![1i8; n * len * DIM], vec![1.0f32; n * len]);
        let layout = TokenLayout::padded(n, len, DIM).expect("a layout");
        let scales = Scales::F32(scales.into());
        let documents = Tokens::<Int8>::from_codes(&codes[..], scales, layout).expect("codes");
        // Uploads have page-locked memory of their own.
        let query = device.upload(&query).expect("an upload");
        let before = driver.page_locked_bytes();
        let locked_by = |threads: usize| {
            let options = StreamOptions::default().threads(threads);
            let _ = device.search_stream(&query, &documents, 5, &options).expect("a search");
            driver.page_locked_bytes() - before
        };
        let few = locked_by(2);
        assert_eq!(locked_by(2), few);
        let kept = locked_by(8);
        assert!((64 << 20..66 << 20).contains(&kept), "{kept} bytes");
        assert_eq!([locked_by(8), locked_by(3)], [kept; 2]);
        // Other rows take the same pieces.
        search(&device, 2000, 50).expect("a search");
        assert_eq!(locked_by(8), kept);
        for threads in [24, 8, 24] {
            let bytes = locked_by(threads);
            assert!(bytes < 66 << 20, "{bytes} bytes of {threads} threads");
        }
    });
}

/// Two shares of a device end, also where a source panics or the caller raises an interrupt.
#[test]
fn searches_of_shares_end_however_they_end() {
    in_stand_in("streaming::searches_of_shares_end_however_they_end", |_| {
        let device = device();
        let devices = Devices::new([device.clone(), device.clone()]).expect("devices");
        let query = numbers(32 * DIM);
        let query = Tokens::padded(&query, 1, 32, DIM).expect("a query");
        let layout = TokenLayout::padded(400, 10, DIM).expect("a layout");
        let options = StreamOptions::default().buffer_bytes(10 * DOCUMENT_BYTES).threads(3);
        let source = |wrong: usize| {
            Generated::<f16, _>::new(layout.clone(), move |rows, _: &mut [f16]| {
                assert!(!rows.contains(&wrong), "as meant");
                Ok(())
            })
        };
        let found = devices.search_stream(&query, &source(usize::MAX), 5, &options);
        assert_eq!(found.expect("a search").n_chunks, 40);
        for wrong in [0, 1234, 3999] {
            let call = || devices.search_stream(&query, &source(wrong), 5, &options);
            assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
        }
        let interrupt = Interrupt::default();
        let flag = interrupt.clone();
        let raised = options.clone().progress(move |done| {
            if done.documents > 200 {
                flag.raise();
            }
        });
        let call = || devices.search_stream(&query, &source(usize::MAX), 5, &raised);
        assert!(matches!(interrupt.heeded_by(call), Err(Error::Interrupted)));
        search(&device, 100, 10).expect("a search");
    });
}

/// The kernel is chosen once for calls that are alike, and again for others: rows of so many
/// elements that are normalised need one more launch.
#[test]
fn shards_are_ranked_by_the_kernel_of_the_call() {
    in_stand_in("streaming::shards_are_ranked_by_the_kernel_of_the_call", |driver| {
        let devices = Devices::new([device(), device()]).expect("devices");
        let documents = numbers(400 * 10 * 2 * DIM);
        let documents = Tokens::padded(&documents, 400, 10, 2 * DIM).expect("documents");
        let shards = devices.upload(&documents).expect("shards");
        let queries = numbers(2 * 32 * 2 * DIM);
        let queries = Tokens::padded(&queries, 2, 32, 2 * DIM).expect("queries");
        let launches = |n_queries: usize, normalize: bool| {
            let queries = queries.items(0..n_queries).expect("queries");
            let options = ScoreOptions::default().normalize(normalize);
            driver.clear();
            let found = devices.top_k(&queries, &shards, &options, 5).expect("rankings");
            assert_eq!(found.len(), n_queries);
            driver.count(LAUNCHES)
        };
        // What is made once is made.
        let [plain, normalised] = [false, true].map(|normalize| {
            launches(2, normalize);
            launches(2, normalize)
        });
        assert!(plain > 0 && normalised > plain, "{plain} and {normalised} launches");
        for _ in 0..2 {
            assert_eq!(launches(2, false), plain);
            launches(1, false);
            assert_eq!(launches(2, true), normalised);
        }
    });
}

/// A device that has no room for the second buffer says so, keeps nothing, and works again.
#[test]
fn a_device_without_room_for_the_second_buffer() {
    in_stand_in("streaming::a_device_without_room_for_the_second_buffer", |driver| {
        let device = device();
        search(&device, 3000, 1000).expect("a search");
        let before = driver.used_bytes();
        let buffer = 1000 * DOCUMENT_BYTES;
        driver.set_memory(before + buffer + buffer / 2);
        match search(&device, 3000, 1000) {
            Err(Error::DeviceMemory { requested_bytes, free_bytes }) => {
                assert_eq!(requested_bytes, buffer);
                assert!(free_bytes.is_some_and(|free| free < buffer));
            }
            other => panic!("{other:?}"),
        }
        assert!(driver.used_bytes() <= before, "nothing stays");
        // Smaller buffers fit, and so do these when there is memory again.
        search(&device, 3000, 100).expect("a search");
        driver.set_memory(80 << 30);
        search(&device, 3000, 1000).expect("a search");
    });
}

/// Nothing stays of a search whose source fails in the middle, whatever its copies are doing.
#[test]
fn a_truncated_file_in_the_middle_of_a_stream() {
    in_stand_in("streaming::a_truncated_file_in_the_middle_of_a_stream", |driver| {
        let device = device();
        driver.slow_copies(true);
        search(&device, 300, 10).expect("a search");
        let path = std::env::temp_dir().join(format!("maxsim-driver-{}", std::process::id()));
        std::fs::write(&path, vec![0; 155 * DOCUMENT_BYTES as usize]).expect("a file");
        let layout = TokenLayout::padded(300, 10, DIM).expect("a layout");
        let source = TokenReader::<f16>::open(&path, 0, layout).expect("a reader");
        let query = numbers(32 * DIM);
        let query = Tokens::padded(&query, 1, 32, DIM).expect("a query");
        let options = StreamOptions::default().buffer_bytes(10 * DOCUMENT_BYTES).threads(3);
        let before = driver.used_bytes();
        for _ in 0..20 {
            match device.search_stream(&query, &source, 5, &options) {
                Err(Error::Source { first_row, .. }) => assert!(first_row >= 1500),
                other => panic!("{other:?}"),
            }
            search(&device, 300, 10).expect("a search");
        }
        assert!(driver.used_bytes() <= before + (1 << 20));
        std::fs::remove_file(&path).expect("the file");
    });
}

/// Codes and arranged buckets of residual-compressed documents reach the device, and rows that
/// kernels may read behind the last one have codes of a centroid.
#[test]
fn residuals_reach_the_device() {
    in_stand_in("streaming::residuals_reach_the_device", |driver| {
        check_residuals(driver, false, |search, tokens| {
            search(tokens);
            search(&tokens.arranged().expect("arranged tokens"));
        });
    });
}

/// Page-locked codes and buckets are copied as they lie: no thread stages them.
#[test]
fn page_locked_residuals_are_copied_at_once() {
    in_stand_in("streaming::page_locked_residuals_are_copied_at_once", |driver| {
        check_residuals(driver, false, |search, tokens| {
            let arranged = device().page_locked_residual(tokens).expect("memory");
            let before = driver.page_locked_bytes();
            search(&arranged);
            // Lists and results have some.
            assert!(driver.page_locked_bytes() < before + (4 << 20), "no pieces are made");
        });
    });
}

/// A mask is staged beside them.
#[test]
fn page_locked_residuals_with_a_mask() {
    in_stand_in("streaming::page_locked_residuals_with_a_mask", |driver| {
        check_residuals(driver, true, |search, tokens| {
            search(&device().page_locked_residual(tokens).expect("memory"));
        });
    });
}

/// Runs searches of tokens in three chunks, and finds each where the device has memory.
fn check_residuals(
    driver: &StandIn,
    has_mask: bool,
    run: impl FnOnce(&dyn Fn(&dyn ResidualSource), &ResidualTokens<'_>),
) {
    let device = device();
    let (n, len) = (30, 8);
    let rows = n * len;
    let centroids = Centroids::F32(vec![0.5; 300 * DIM].into());
    let codec = ResidualCodec::new(2, DIM, centroids, &[-0.3, -0.1, 0.1, 0.3], true);
    let codes: Vec<i32> = (0..rows).map(|row| (row * 37 % 300) as i32).collect();
    let buckets: Vec<u8> = (0..rows * 32).map(|i| (i * 7919 % 251) as u8).collect();
    let mask: Vec<u8> = (0..rows).map(|row| u8::from(row % 8 != 3) * (1 + row as u8 % 9)).collect();
    let layout = TokenLayout::padded(n, len, DIM).expect("a layout");
    let order = BitOrder::Colbert;
    let codec = codec.expect("a codec").into();
    let tokens = ResidualTokens::new(codec, &codes[..], &buckets[..], order, layout);
    let mut tokens = tokens.expect("tokens");
    if has_mask {
        tokens = tokens.with_mask(&mask[..]).expect("a mask");
    }
    let arrangement = Arrangement::new(DIM, 2, order).expect("an arrangement");
    let query = numbers(32 * DIM);
    let query = Tokens::padded(&query, 1, 32, DIM).expect("a query");
    // Uploads have page-locked memory of their own.
    let query = device.upload(&query).expect("an upload");
    let bytes_per_document = (len * (arrangement.row_bytes + 4 + usize::from(has_mask))) as u64;
    let options = StreamOptions::default().buffer_bytes(10 * bytes_per_document);
    let search = |source: &dyn ResidualSource| {
        let found = device.search_residual_stream(&query, &source, 5, &options);
        assert_eq!(found.expect("a search").n_chunks, 3);
    };
    run(&search, &tokens);
    for chunk in 0..3 {
        let rows = chunk * 10 * len..(chunk + 1) * 10 * len;
        let mut arranged = vec![0; rows.len() * arrangement.row_bytes];
        for (row, to) in rows.clone().zip(arranged.chunks_mut(arrangement.row_bytes)) {
            arrangement.arrange(&buckets[row * 32..(row + 1) * 32], to);
        }
        assert!(driver.holds(&arranged), "buckets of chunk {chunk}");
        assert!(!has_mask || driver.holds(&mask[rows.clone()]), "mask of chunk {chunk}");
        let mut words = codes[rows].to_vec();
        words.extend([0; 100]);
        assert!(driver.holds(bytemuck::cast_slice(&words)), "codes of chunk {chunk}");
    }
}
