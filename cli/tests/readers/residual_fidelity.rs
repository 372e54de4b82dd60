//! What compression costs a ranking: documents encoded, decoded to f32 and scored on the CPU,
//! beside the same documents as they are.
//!
//! The sample of the repository is always there; the real set of 1000 documents and 250 queries
//! lies in `data/debian-packages` of the folder MAXSIM_SHARED, or else of the folder `shared`
//! beside the workspace.

use std::path::Path;

use crate::tool::reference_set;
use half::f16;
use maxsim::residual::{ResidualCodec, ResidualTokens, TrainOptions};
use maxsim::{Device, Pairing, Ranked, Ranking, Tokens, TopK};
use maxsim_cli::input::{Reading, TokenFile};
use maxsim_cli::judging::ids::Side;
use maxsim_cli::judging::metrics::Metrics;
use maxsim_cli::judging::qrels::Qrels;
use maxsim_cli::quantize::compress;
use maxsim_cli::residual::{ResidualFile, write};

/// nDCG@10 that 4 bits may cost.
const NDCG_TOLERANCE: f64 = 0.01;

/// The same for 2 bits, of which nothing was promised: what they cost, with room for another
/// k-means.
const NDCG_TOLERANCE_OF_2: f64 = 0.02;

/// A quarter of what the real set would have by itself, which is quicker and no easier.
const N_CENTROIDS: usize = 1024;

#[test]
fn the_sample_keeps_its_ranking() {
    // Of 50 queries, each that loses its first rank to another document costs 0.0074.
    check(Path::new("examples/debian-packages"), 2.0);
}

#[test]
fn the_real_set_keeps_its_ranking() {
    let Some(set) = reference_set("what compression costs") else { return };
    check(&set, 1.0);
}

/// The tolerances are for the real set; the sample's are `times` as large.
fn check(set: &Path, times: f64) {
    let open = |name: &str| TokenFile::open(&set.join(name), Reading::Map).unwrap();
    let (queries, documents) = (open("queries.safetensors"), open("documents.safetensors"));
    let query_ids = queries.ids(Side::Queries).unwrap();
    let document_ids = documents.ids(Side::Documents).unwrap();
    let qrels = Qrels::open(&set.join("queries.jsonl"), None, &query_ids, &document_ids).unwrap();
    let queries = queries.tokens::<f16>(0..queries.n_items()).unwrap();
    let whole = documents.tokens::<f16>(0..documents.n_items()).unwrap();
    let before = ndcg(&wide(&queries), &wide(&whole), &qrels);

    // One k-means serves both: buckets of 2 bits are fitted around the same centroids.
    let four = TrainOptions::default().n_centroids(N_CENTROIDS);
    let two = four.nbits(2);
    let (four, _) = compress(&documents, &four).unwrap();
    let codec = ResidualCodec::fit(four.codec().centroids().clone(), &whole, &two).unwrap();
    let two = ResidualTokens::encode(codec.into(), &whole, &two.encode).unwrap();
    let folder = tempfile::TempDir::new().unwrap();
    for (encoded, tolerance) in [(four, NDCG_TOLERANCE), (two, NDCG_TOLERANCE_OF_2)] {
        let path = folder.path().join("compressed.safetensors");
        write(&path, &encoded).unwrap();
        let file = ResidualFile::open(&path, Reading::Map).unwrap();
        let tokens = file.tokens().unwrap();
        assert_eq!(tokens.layout().n_items(), documents.n_items());

        let after = ndcg(&wide(&queries), &tokens.decode().unwrap(), &qrels);
        let codec = tokens.codec();
        let nbits = codec.nbits();
        let table = codec.centroids().bytes().len() as f64;
        let compressed = std::fs::metadata(&path).unwrap().len() as f64 - table;
        let ratio = size_of_val(whole.data()) as f64 / compressed;
        eprintln!(
            "{}: {nbits} bits, {} centroids: nDCG@10 {before:.4} -> {after:.4}, {ratio:.2} x \
             smaller",
            set.display(),
            codec.n_centroids(),
        );
        assert!(
            (after - before).abs() <= tolerance * times,
            "{nbits} bits: {before} became {after}"
        );
        // dim 128: 256 bytes became 32 of buckets and 4 of a code; offsets and header are next to
        // nothing.
        assert!(nbits != 2 || ratio >= 7.0, "2 bits are {ratio} x smaller");
    }
}

fn wide(tokens: &Tokens<'_, f16>) -> Tokens<'static, f32> {
    let data: Vec<f32> = tokens.data().iter().map(|x| x.to_f32()).collect();
    Tokens::from_layout(data, tokens.layout().clone()).unwrap()
}

fn ndcg(queries: &Tokens<'_, f32>, documents: &Tokens<'_, f32>, qrels: &Qrels) -> f64 {
    let scores = Device::cpu().score(queries, documents, &Pairing::cross()).unwrap();
    let ranking = |scores: &[f32]| {
        let mut best = TopK::new(10);
        for (id, &score) in (0..).zip(scores) {
            let has_tokens = documents.layout().has_tokens(id as usize);
            best.push(Ranked { id, score, has_tokens });
        }
        best.into_ranking()
    };
    let rankings: Vec<Ranking> =
        scores.values().chunks(documents.layout().n_items()).map(ranking).collect();
    Metrics::new(&rankings, qrels).ndcg.unwrap()
}
