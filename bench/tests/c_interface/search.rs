//! Searches from queries of host memory to ids there.

use std::ptr;

use maxsim_bench::ffi::*;

use super::{DIM, ROWS, address, last_error};

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
        // Two shards, of which the later documents come first.
        let shard = |first: usize, n: u64| {
            let (f16, rows) = (c"f16".as_ptr(), address(&documents[first * DIM..]));
            maxsim_bench_tokens(device, f16, rows, dim, n, 1, ptr::null(), 0).cast_const()
        };
        let (shards, firsts) = ([shard(1, 2), shard(0, 1)], [1, 0]);
        (ids, best) = ([0; 4], [0.0; 4]);
        let rank = |n_shards: u64| {
            let (shards, firsts, query) = (shards.as_ptr(), firsts.as_ptr(), address(query));
            maxsim_bench_rank_shards(shards, firsts, n_shards, query, dim, 1, 2, 4, ids_at, best_at)
        };
        assert_eq!(rank(2), 0, "{}", last_error());
        assert_eq!((ids, &best[..3]), (exact.0, &exact.1[..3]));
        assert_eq!(rank(1), 0);
        assert!(ids[..2].iter().all(|id| *id > 0) && ids[2] == -1, "{ids:?}");
        for shard in shards {
            maxsim_bench_free(shard.cast_mut());
        }

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
