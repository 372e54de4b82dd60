//! Searches from queries of host memory to ids there.

use std::ffi::{CStr, CString};
use std::ptr;

use maxsim_bench::ffi::*;

use super::{DIM, ROWS, address, last_error, quantized};

#[test]
fn searches_from_queries_to_ids() {
    // Rows of four dims: a query of two tokens, three documents of one.
    let rows = ROWS.map(half::f16::from_f32);
    let (query, documents) = rows.split_at(2 * DIM);
    // SAFETY: live handles, and memory that outlives them.
    unsafe {
        let device = maxsim_bench_open(-1);
        let (mut ids, mut best, mut counts) = ([0i64; 4], [0f32; 4], [0i64; 2]);
        let places = [ids.as_mut_ptr().expose_provenance(), best.as_mut_ptr().expose_provenance()];
        let [ids_at, best_at] = places.map(|place| place as u64);
        let dim = DIM as u64;
        let plain = maxsim_bench_tokens(
            device,
            c"f16".as_ptr(),
            address(documents),
            dim,
            3,
            1,
            ptr::null(),
            0,
        );
        assert_eq!(maxsim_bench_rank(plain, address(query), dim, 1, 2, 4, ids_at, best_at), 0);
        let similarity = |s: usize, t: usize| -> f32 {
            let row = |r: &[half::f16], i: usize| r[i * DIM..][..DIM].to_vec();
            row(query, s).iter().zip(row(documents, t)).map(|(a, b)| a.to_f32() * b.to_f32()).sum()
        };
        let score = |t: usize| similarity(0, t) + similarity(1, t);
        let mut order = [0, 1, 2];
        order.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
        assert_eq!(ids, [order[0] as i64, order[1] as i64, order[2] as i64, -1]);
        assert!((best[0] - score(order[0])).abs() < 1e-5 && best[3].is_nan(), "{best:?}");

        let exact = (ids, best);
        let corpus = maxsim_bench_corpus(device, address(documents), dim, 3, 1);
        assert!(!corpus.is_null(), "{}", last_error());
        let counts_at = counts.as_mut_ptr().expose_provenance() as u64;
        let search = |corpus: *const Object, k: u64| {
            let query = address(query);
            maxsim_bench_search(corpus, query, dim, 1, 2, k, 1, 1, ids_at, best_at, counts_at)
        };
        assert_eq!(search(corpus, 3), 0, "{}", last_error());
        assert_eq!((&ids[..3], &best[..3]), (&exact.0[..3], &exact.1[..3]));
        assert_eq!(counts, [3, 3]);
        // What needs no proof of the others is not scored again.
        assert_eq!(search(corpus, 1), 0);
        assert!(ids[0] == exact.0[0] && counts[0] == 1 && counts[1] < 3, "{counts:?}");

        assert_eq!(search(plain, 1), -1);
        assert!(last_error().contains("expected a corpus, found tokens"), "{}", last_error());
        for object in [corpus, plain, device] {
            maxsim_bench_free(object);
        }
    }
}

#[test]
fn documents_of_host_memory_are_searched_as_those_of_a_device() {
    let rows = ROWS.map(half::f16::from_f32);
    let (query, documents) = rows.split_at(2 * DIM);
    // SAFETY: live handles, and memory that outlives them.
    unsafe {
        let (device, dim) = (maxsim_bench_open(-1), DIM as u64);
        let memory = maxsim_bench_page_locked(device, size_of_val(documents) as u64);
        let mut at = 0;
        assert_eq!(maxsim_bench_address(memory, &mut at), 0, "{}", last_error());
        let to: *mut half::f16 = ptr::with_exposed_provenance_mut(at as usize);
        ptr::copy(documents.as_ptr(), to, documents.len());

        let (mut ids, mut best) = ([0i64; 2], [0f32; 2]);
        let places = [ids.as_mut_ptr().expose_provenance(), best.as_mut_ptr().expose_provenance()];
        let [ids_at, best_at] = places.map(|place| place as u64);
        let stream = |format: &CStr, rows: u64, scales: u64| {
            let (format, query) = (format.as_ptr(), address(query));
            maxsim_bench_search_stream(
                device, format, rows, scales, dim, 3, 1, query, 1, 2, 2, 8, 1, ids_at, best_at,
            )
        };
        assert_eq!(stream(c"f16", at, 0), 0, "{}", last_error());
        let found = (ids, best);
        let plain = maxsim_bench_tokens(device, c"f16".as_ptr(), at, dim, 3, 1, ptr::null(), 0);
        assert_eq!(maxsim_bench_rank(plain, address(query), dim, 1, 2, 2, ids_at, best_at), 0);
        assert_eq!(found, (ids, best));

        // The same rows in a file.
        let name = format!("maxsim-bench-rows-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, bytemuck::cast_slice::<_, u8>(documents)).unwrap();
        let file = |path: &CStr| {
            let query = address(query);
            maxsim_bench_search_file(
                device,
                path.as_ptr(),
                0,
                dim,
                3,
                1,
                query,
                1,
                2,
                2,
                2,
                ids_at,
                best_at,
            )
        };
        (ids, best) = ([0; 2], [0.0; 2]);
        let c_path = CString::new(path.to_str().unwrap()).unwrap();
        assert_eq!(file(&c_path), 0, "{}", last_error());
        assert_eq!(found, (ids, best));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(file(&c_path), -1);
        assert!(last_error().contains(path.to_str().unwrap()), "{}", last_error());

        // The codes of the same rows.
        let codes = quantized(c"int8", 2, 3, 1);
        let (mut stored, mut scales) = ([0i8; 3 * DIM], [0f32; 3]);
        let places =
            [stored.as_mut_ptr().expose_provenance(), scales.as_mut_ptr().expose_provenance()];
        let [stored_at, scales_at] = places.map(|place| place as u64);
        assert_eq!(maxsim_bench_codes(codes, stored_at, scales_at, 0), 0);
        let scales = scales.map(half::f16::from_f32);
        assert_eq!(stream(c"int8", stored_at, address(&scales)), 0, "{}", last_error());
        assert_eq!(ids, found.0);
        assert!((best[0] - found.1[0]).abs() < 0.02 && best != found.1, "{best:?} {found:?}");

        assert_eq!(stream(c"fp4", at, 0), -1);
        assert!(last_error().contains("fp4"), "{}", last_error());
        assert_eq!(maxsim_bench_address(plain, &mut at), -1);
        assert!(last_error().contains("page-locked memory"), "{}", last_error());
        for object in [codes, plain, memory, device] {
            maxsim_bench_free(object);
        }
    }
}

#[test]
fn devices_search_as_one() {
    let rows = ROWS.map(half::f16::from_f32);
    let (query, documents) = rows.split_at(2 * DIM);
    // SAFETY: live handles, and memory that outlives them.
    unsafe {
        let (cpu, dim) = (maxsim_bench_open(-1), DIM as u64);
        let both = [cpu.cast_const(); 2];
        let devices = maxsim_bench_devices(both.as_ptr(), 2);
        let shards = maxsim_bench_shards(devices, address(documents), dim, 3, 1);
        assert!(!shards.is_null(), "{}", last_error());
        let (mut ids, mut best) = ([0i64; 4], [0f32; 4]);
        let places = [ids.as_mut_ptr().expose_provenance(), best.as_mut_ptr().expose_provenance()];
        let [ids_at, best_at] = places.map(|place| place as u64);
        let (query, rows) = (address(query), address(documents));

        let plain = maxsim_bench_tokens(cpu, c"f16".as_ptr(), rows, dim, 3, 1, ptr::null(), 0);
        assert_eq!(maxsim_bench_rank(plain, query, dim, 1, 2, 4, ids_at, best_at), 0);
        let (wanted_ids, wanted) = (ids, best);
        (ids, best) = ([0; 4], [0.0; 4]);
        assert_eq!(maxsim_bench_rank_shards(shards, query, dim, 1, 2, 4, ids_at, best_at), 0);
        assert_eq!((ids, &best[..3]), (wanted_ids, &wanted[..3]));

        (ids, best) = ([0; 4], [0.0; 4]);
        let stream = |on: *const Object| {
            let format = c"f16".as_ptr();
            maxsim_bench_search_stream(
                on, format, rows, 0, dim, 3, 1, query, 1, 2, 4, 0, 0, ids_at, best_at,
            )
        };
        assert_eq!(stream(devices), 0, "{}", last_error());
        assert_eq!((ids, &best[..3]), (wanted_ids, &wanted[..3]));
        assert_eq!(stream(plain), -1);
        assert!(last_error().contains("device or devices, found tokens"), "{}", last_error());
        assert!(maxsim_bench_devices(both.as_ptr(), 0).is_null());
        for object in [plain, shards, devices, cpu] {
            maxsim_bench_free(object);
        }
    }
}

#[test]
fn residual_documents_of_host_memory_are_searched() {
    // One bit per element that adds ±0.25 to a centroid; rows are divided by their lengths.
    let centroids = [1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0].map(half::f16::from_f32);
    let (weights, codes, residuals) = ([-0.25f32, 0.25], [0i32, 1, 0], [0u8, 0b1111, 0b0001]);
    let query = [1.0, 0.0, 0.0, 0.0].map(half::f16::from_f32);
    let decoded = |code: usize, bits: u8| -> f32 {
        let x: [f32; 4] = std::array::from_fn(|i| {
            centroids[code * DIM + i].to_f32() + weights[usize::from(bits >> i & 1)]
        });
        x[0] / x.iter().map(|x| x * x).sum::<f32>().sqrt()
    };
    // SAFETY: live handles, and memory that outlives them.
    unsafe {
        let (device, dim) = (maxsim_bench_open(-1), DIM as u64);
        let [codes_at, residuals_at] = [address(&codes), address(&residuals)];
        let [centroids, weights] = [address(&centroids), address(&weights)];
        let corpus = |for_device: *const Object| {
            maxsim_bench_host_residual(
                for_device,
                1,
                centroids,
                2,
                dim,
                weights,
                codes_at,
                residuals_at,
                3,
                1,
            )
        };
        let documents = corpus(ptr::null());
        assert!(!documents.is_null(), "{}", last_error());
        let (mut ids, mut best) = ([0i64; 3], [0f32; 3]);
        let places = [ids.as_mut_ptr().expose_provenance(), best.as_mut_ptr().expose_provenance()];
        let [ids_at, best_at] = places.map(|place| place as u64);
        let search = |documents: *const Object| {
            let query = address(&query);
            maxsim_bench_search_residual_stream(
                device, documents, query, dim, 1, 1, 3, 0, ids_at, best_at,
            )
        };
        assert_eq!(search(documents), 0, "{}", last_error());
        assert_eq!(ids, [2, 0, 1]);
        let wanted = [decoded(0, 0b0001), decoded(0, 0), decoded(1, 0b1111)];
        assert!(best.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-3), "{best:?} {wanted:?}");

        // Those that are arranged are for GPUs.
        let arranged = corpus(device);
        assert!(!arranged.is_null(), "{}", last_error());
        assert_eq!(search(arranged), -1);
        assert!(last_error().contains("GPU"), "{}", last_error());
        assert_eq!(search(device), -1);
        assert!(last_error().contains("residual tokens of host memory"), "{}", last_error());
        assert!(corpus(documents).is_null());
        assert!(last_error().contains("expected a device"), "{}", last_error());
        for object in [arranged, documents, device] {
            maxsim_bench_free(object);
        }
    }
}
