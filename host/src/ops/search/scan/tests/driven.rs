//! Searches that a device drives, against those that the host does: on every GPU; and on the CPU
//! with what a device would find.

use half::f16;
use maxsim_kernels::abi::params::search::{NO_DOCUMENT, item_of};
use maxsim_kernels::abi::params::top_k::{entry, key};

use super::*;
use crate::device::tests::on_every_device;
use crate::ops::search::driven::Found;
use crate::problem::pairing::Kind;
use crate::tokens::format::{Fp8, Quantized};

/// Documents for which there is room when a device is imitated: an odd number.
const ROOM: usize = 333;

/// Options of a search.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    k: usize,
    n_candidates: usize,
    exact: bool,
}

/// Searches both ways. Whether what a device found was enough.
fn check<T: Element, F: Quantized + ScorableWith<F>>(
    device: &Device,
    [queries, documents]: [&Tokens<'_, T>; 2],
    wanted: Wanted,
) -> bool {
    let Wanted { k, n_candidates, exact } = wanted;
    let codes = [queries.quantize::<F>(ScaleType::F32), documents.quantize::<F>(ScaleType::F16)];
    let codes = codes.map(Result::unwrap);
    let handles = [device.upload(queries).unwrap(), device.upload(documents).unwrap()];
    let of_codes = [device.upload(&codes[0]).unwrap(), device.upload(&codes[1]).unwrap()];
    let sides = [0, 1].map(|i| SearchTokens::measured(&handles[i], &of_codes[i]).unwrap());
    let options = SearchOptions::default().n_candidates(n_candidates).exact(exact);
    let search = || Search {
        bounds: PairBounds::of_rescored(sides[0].terms(), sides[1].terms(), T::TYPE),
        layout: handles[1].layout(),
        scanned: Scanned::new(device, sides[0].codes, sides[1].codes).unwrap(),
        rescorer: Rescorer::new(device, sides[0].tokens, sides[1].tokens),
        new: Shortlist::new(k, options),
        searches: Vec::new(),
        copied_bytes: COPIED_BYTES,
    };
    let mut host = search();
    host.begin();
    if !host.run_selected(SELECTED_MIN).unwrap() {
        host.begin();
        host.push_all().unwrap();
        host.rescore_all().unwrap();
    }
    let all = host.searches.remove(0).into_ranking();
    let mut is_driven = false;
    // Room grows with what was found.
    for _ in 0..3 {
        let mut driven = search();
        driven.begin();
        is_driven = match device.ordinal() {
            Some(_) => driven.run_driven().unwrap(),
            None if !Unseen::is_known_by(driven.bounds.largest(0)) => false,
            None => {
                let found = imitated(device, &driven);
                let is_enough = driven.show_found(&found).unwrap();
                driven.rescore_all().unwrap();
                is_enough
            }
        };
        if !is_driven {
            assert_eq!(driven.searches[0].rescored.len() + driven.searches[0].waiting.len(), 0);
            continue;
        }
        let found = driven.searches.remove(0).into_ranking();
        let bits = |ranking: &SearchRanking| -> Vec<_> {
            let hits = ranking.documents.iter();
            hits.map(|hit| (hit.id, hit.score.to_bits(), hit.has_tokens, hit.certainty)).collect()
        };
        let counts = |r: &SearchRanking| (r.n_rescored, r.n_nan, r.n_empty);
        assert_eq!(bits(&found), bits(&all), "{device}, {wanted:?}");
        assert_eq!(counts(&found), counts(&all), "{device}, {wanted:?}");
    }
    is_driven
}

/// What a device would find, by the scores of the CPU: as the kernels do it.
fn imitated<T: Element>(device: &Device, search: &Search<'_, T>) -> Found {
    let (k, n_candidates) = (search.new.k, search.new.options.n_candidates);
    let row = search.scanned.rows(0..1, search.layout.n_items()).unwrap();
    let best = search.scanned.best(search.layout, n_candidates).unwrap().remove(0);
    let [queries, documents] = search.rescorer.handles().unwrap();
    let exact = |ids: &[u32]| -> Vec<f32> {
        let pairs = Pairing(Kind::Pairs { ids: ids.iter().map(|&id| [0, id]).collect() });
        device.score(queries, documents, &pairs).unwrap().into_values()
    };
    let linear = search.bounds.linear(0);
    let is_candidate = |document: &&Ranked| document.has_tokens && !document.score.is_nan();
    let candidates: Vec<Ranked> = best.ranked.iter().filter(is_candidate).copied().collect();
    let ids: Vec<u32> = candidates.iter().map(|document| document.id).collect();
    let scores = exact(&ids);
    let mut rows = vec![[0, best.n_nan as u32, best.n_empty as u32, 0]];
    for (document, exact) in candidates.iter().zip(&scores) {
        let &Ranked { id, score, .. } = document;
        rows.push([id, score.to_bits(), linear.of(id).to_bits(), exact.to_bits()]);
    }
    rows.resize(1 + n_candidates, [NO_DOCUMENT, 0, 0, 0]);
    let mut words: Vec<u64> = scores.iter().map(|score| key(score.to_bits(), 0, false)).collect();
    words.sort_unstable_by(|a, b| b.cmp(a));
    let kth = words.get(k - 1).map(|&word| entry(word).score);
    let kth = kth.filter(|kth| !kth.is_nan());
    let largest = search.bounds.largest(0);
    let least = kth.map_or(f32::NEG_INFINITY, |kth| threshold(kth, largest) as f32);
    let key_of = |of: &Ranked| key(of.score.to_bits(), of.id, !of.has_tokens);
    let last = if best.ranked.len() < n_candidates { None } else { best.ranked.last() };
    let last = last.map_or(0, key_of);
    let reaching = linear.reaching(&row, least).into_iter();
    let found: Vec<(u32, f32, f32)> =
        reaching.filter(|(id, score, _)| key(score.to_bits(), *id, false) < last).collect();
    rows[0][0] = found.len() as u32;
    let mut scores = vec![f32::NAN; if search.new.options.exact { ROOM } else { 0 }];
    if found.len() <= ROOM {
        let ids: Vec<u32> = found.iter().map(|of| of.0).collect();
        for (place, exact) in (0u32..).zip(exact(&ids)) {
            if let Some(score) =
                scores.get_mut(item_of(place, ids.len() as u32, ROOM as u32) as usize)
            {
                *score = exact;
            }
        }
        let row_of =
            |&(id, score, bound): &(u32, f32, f32)| [id, score.to_bits(), bound.to_bits(), 0];
        rows.extend(found.iter().map(row_of));
    }
    rows.resize(1 + n_candidates + ROOM, [u32::MAX; 4]);
    Found { rows, n_candidates, scores }
}

/// Numbers of `n` documents of up to four tokens each, near to each other or not.
fn numbers<T: Element>(n: usize, dim: usize, spread: f32) -> Vec<T> {
    let rows = rows(n * 4 * dim / DIM, spread, 7);
    rows.into_iter().map(T::from_f32).collect()
}

/// Runs a check on the CPU and on every GPU.
fn everywhere(test: &str, check: impl Fn(&Device)) {
    check(&Device::cpu());
    on_every_device(test, check);
}

/// Few candidates and as many as there may be, with proof and without.
fn options() -> impl Iterator<Item = Wanted> {
    [(1, 12), (5, 5), (12, 100), (100, 256)]
        .into_iter()
        .flat_map(|(k, n_candidates)| [false, true].map(|exact| Wanted { k, n_candidates, exact }))
}

#[test]
fn what_a_device_finds_is_what_the_host_does() {
    everywhere("what_a_device_finds_is_what_the_host_does", |device| {
        let mut n_driven = 0;
        for (spread, dim) in [(0.9, 128), (0.3, 64), (0.05, 128), (0.01, 32)] {
            let data = numbers::<f16>(1500, dim, spread);
            let query = numbers::<f16>(8, dim, 0.2);
            let query = Tokens::padded(&query, 1, 32, dim).unwrap();
            let regular = Tokens::padded(&data, 1500, 4, dim).unwrap();
            let lengths: Vec<i64> = (0..1500).map(|i| i % 5).collect();
            let mask: Vec<u8> = (0..6000).map(|i| u8::from(i % 7 != 2 && i / 80 % 9 > 0)).collect();
            let offsets: Vec<i64> = (0..=1500).map(|i| i * 4 - i64::from(i % 3 == 1)).collect();
            for documents in [
                regular.clone(),
                regular.clone().with_lengths(&lengths).unwrap(),
                regular.with_mask(&mask).unwrap(),
                Tokens::packed(&data, dim, &offsets).unwrap(),
            ] {
                for wanted in options() {
                    let sides = [&query, &documents];
                    n_driven += usize::from(check::<f16, Int8>(device, sides, wanted));
                    n_driven += usize::from(check::<f16, Fp8>(device, sides, wanted));
                }
            }
        }
        assert!(n_driven > 100, "{device}: {n_driven} searches of {} were driven", 4 * 4 * 16);
    });
}

/// Which documents have no token is that of the search's own mask, whatever mask an earlier search
/// of the same shape had; also where a score of 0 would be the best.
#[test]
fn documents_without_tokens_are_those_of_the_search() {
    everywhere("documents_without_tokens_are_those_of_the_search", |device| {
        let all: Vec<u8> = (0..6000).map(|row| u8::from(row % 7 != 2)).collect();
        let mut some = all.clone();
        [3, 700].into_iter().for_each(|document| some[document * 4..][..4].fill(0));
        for (dim, masks) in [(32, [&all, &some]), (64, [&some, &all])] {
            let data = numbers::<f16>(1500, dim, 0.3);
            let query = numbers::<f16>(8, dim, 0.2);
            let negated: Vec<f16> = query.iter().map(|&x| -x).collect();
            let queries = [query, negated];
            let queries = queries.each_ref().map(|x| Tokens::padded(x, 1, 32, dim).unwrap());
            for mask in [masks[0], masks[1], masks[0]] {
                let documents = Tokens::padded(&data, 1500, 4, dim).unwrap();
                let documents = documents.with_mask(mask).unwrap();
                let mut n_driven = 0;
                for (query, wanted) in queries.iter().flat_map(|q| options().map(move |o| (q, o))) {
                    let sides = [query, &documents];
                    n_driven += usize::from(check::<f16, Int8>(device, sides, wanted));
                }
                assert!(n_driven > 2, "{device}: {n_driven} searches of 16 were driven");
            }
        }
    });
}

/// Of equal documents the first come first, and more reach the threshold than there is room for;
/// where hardly any document has a token, all are candidates.
#[test]
fn ties_and_documents_without_tokens_are_found_as_ever() {
    everywhere("ties_and_documents_without_tokens_are_found_as_ever", |device| {
        let row = numbers::<f32>(1, 16, 0.5);
        let query = Tokens::padded(&row, 1, 4, 16).unwrap();
        for n_others in [0, 40, 200, 1460] {
            let mut data = row.repeat(1500);
            data[64 * 40..64 * (40 + n_others)].iter_mut().for_each(|x| *x *= 0.25);
            let equal = Tokens::padded(&data, 1500, 4, 16).unwrap();
            for wanted in options() {
                let is_driven = check::<f32, Int8>(device, [&query, &equal], wanted);
                let fits = n_others >= 1400 && wanted.k <= 40;
                assert!(is_driven || !fits, "{device}: {n_others} are worse, {wanted:?}");
                let lengths: Vec<i64> = (0..1500).map(|i| 4 * i64::from(i % 40 == 3)).collect();
                let few = equal.clone().with_lengths(&lengths).unwrap();
                assert!(check::<f32, Int8>(device, [&query, &few], wanted), "{device}, {wanted:?}");
            }
        }
    });
}

/// Where of a document nothing is known, or sums overflow, the host looks at all scores.
#[test]
fn what_is_not_known_is_left_to_the_host() {
    everywhere("what_is_not_known_is_left_to_the_host", |device| {
        let query = numbers::<f32>(1, 16, 0.5);
        let query = Tokens::padded(&query, 1, 4, 16).unwrap();
        for strange in [f32::NAN, f32::INFINITY, f32::MAX] {
            for place in [0, 64 * 700 + 5, 64 * 1499] {
                let mut data = numbers::<f32>(1500, 16, 0.3);
                data[place] = strange;
                let documents = Tokens::padded(&data, 1500, 4, 16).unwrap();
                for wanted in options() {
                    let is_driven = check::<f32, Int8>(device, [&query, &documents], wanted);
                    assert!(!is_driven, "{device}: {strange}, {wanted:?}");
                }
            }
        }
        let size = 7e18f32;
        let all = vec![size; 64];
        let query = Tokens::padded(&all, 1, 1, 64).unwrap();
        let mut rows = vec![0.0f32; 1500 * 64];
        (0..1500).for_each(|i| rows[i * 64 + i % 64] = size * (1.0 - i as f32 / 5000.0));
        let documents = Tokens::padded(&rows, 1500, 1, 64).unwrap();
        for wanted in options() {
            check::<f32, Int8>(device, [&query, &documents], wanted);
        }
    });
}
