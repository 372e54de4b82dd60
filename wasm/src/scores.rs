//! Scores of queries against documents.

use js_sys::{Array, Float32Array, Int32Array, Object, Reflect};
use maxsim::{Device, Pairing, Ranking, ScoreOptions, ScoreShape, TokenLayout};
use wasm_bindgen::prelude::*;

use crate::arguments::{Options, Result, count, error, integers};
use crate::tokens::Tokens;

#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = r#"
/** Which queries meet which documents. Every query meets every document where nothing is said. */
export type Pairing =
    /** `k` documents per query, each query's own: document `q * k + j` is candidate `j` of `q`. */
    | { ownCandidates: number }
    /** `k` documents per query out of shared ones: ids `[queries, k]`, row-major. */
    | { candidates: Integers; k: number }
    /** Any list of pairs: score `p` is query `queries[p]` against document `documents[p]`. */
    | { queries: Integers; documents: Integers };

/** How similarities are computed. */
export interface SimilarityOptions {
    /** Divide every vector by its length. */
    normalize?: boolean;
    /** Score by angular distance, as a similarity: minus the sum of `1 - cos`. Normalizes. */
    angular?: boolean;
}

/** What is scored, and what is returned besides scores. */
export interface ScoreOptions extends SimilarityOptions {
    pairing?: Pairing;
    /** Also return, per query token, the index of the document token that it matches. */
    winners?: boolean;
    /** Also return, per query token, the similarity of that match. */
    tokenScores?: boolean;
}

/** How documents are ranked. */
export interface RankOptions extends SimilarityOptions {
    /** Also return, per listed document and query token, the document token that it matches. */
    winners?: boolean;
}

/** One ranked document. */
export interface RankedDocument {
    /** Its number among the documents. */
    document: number;
    score: number;
    /** Whether it has a token; without one it scores 0 and ranks last. */
    hasTokens: boolean;
    /**
     * Per query token, the document's token that it matches, or -1; where winners were asked for.
     */
    winners?: Int32Array;
}

/** The best documents of one query, best first; equal scores by lower number, then NaN. */
export interface Ranking {
    documents: RankedDocument[];
    /** Documents with tokens whose score is NaN, among all. */
    nNan: number;
    /** Documents without a token, among all. */
    nEmpty: number;
}
"#;

/// The options that similarities depend on.
const SIMILARITY: [&str; 2] = ["normalize", "angular"];

/// Scores, and what was asked for besides.
#[wasm_bindgen]
pub struct Scores {
    scores: maxsim::Scores,
    pairing: Pairing,
    documents: TokenLayout,
}

/// Scores queries against documents: `scores[q, d] = Σ_s max_t ⟨Q[q, s], D[d, t]⟩`, with `s` over
/// the query's tokens and `t` over the document's.
///
/// Both are of one format, or codes that go together (`Tokens.quantize`). NaN and infinities follow
/// IEEE 754: a NaN makes the scores of its item NaN and nothing else.
#[wasm_bindgen]
pub fn score(
    queries: &Tokens,
    documents: &Tokens,
    #[wasm_bindgen(unchecked_optional_param_type = "ScoreOptions")] options: &JsValue,
) -> Result<Scores> {
    let known = ["pairing", "winners", "tokenScores"];
    let options = Options::read(options, &[&known[..], &SIMILARITY].concat())?;
    let pairing = match options.get("pairing")? {
        Some(pairing) => read_pairing(&pairing)?,
        None => Pairing::cross(),
    };
    let wanted = similarity(&options)?
        .winners(options.flag("winners")?)
        .token_scores(options.flag("tokenScores")?);
    let (queries, rows) = (queries.view()?, documents.view()?);
    let scores = Device::cpu().score_any(&*queries, &*rows, &pairing, &wanted)?;
    Ok(Scores { scores, pairing, documents: documents.layout().clone() })
}

/// Ranks documents for each query: the best `k`.
///
/// Matches are found for the listed documents alone, so that `winners` of a large corpus cost
/// little.
#[wasm_bindgen(unchecked_return_type = "Ranking[]")]
pub fn rank(
    queries: &Tokens,
    documents: &Tokens,
    #[wasm_bindgen(unchecked_param_type = "number")] k: &JsValue,
    #[wasm_bindgen(unchecked_optional_param_type = "RankOptions")] options: &JsValue,
) -> Result<Array> {
    let k = count(k, "k")?;
    let options = Options::read(options, &[&["winners"][..], &SIMILARITY].concat())?;
    let (wanted, with_winners) = (similarity(&options)?, options.flag("winners")?);
    let (device, layout) = (Device::cpu(), documents.layout());
    let (queries, documents) = (queries.view()?, documents.view()?);
    let scores = device.score_any(&*queries, &*documents, &Pairing::cross(), &wanted)?;
    let rankings = scores.top_k(layout, k)?;
    let winners = match with_winners {
        true => {
            let of_query = |(query, ranking): (u32, &Ranking)| -> Vec<(u32, u32)> {
                ranking.ranked.iter().map(|ranked| (query, ranked.id)).collect()
            };
            let listed = (0..).zip(&rankings).flat_map(of_query);
            let (query_ids, document_ids): (Vec<u32>, Vec<u32>) = listed.unzip();
            let pairs = Pairing::pairs(&query_ids, &document_ids)?;
            Some(device.score_any(&*queries, &*documents, &pairs, &wanted.winners(true))?)
        }
        false => None,
    };
    let mut pair = 0..;
    rankings
        .iter()
        .map(|ranking| {
            shown(ranking, || {
                let (p, scores) = (pair.next()?, winners.as_ref()?);
                Some(&scores.winners()?[scores.token_offsets()?.range(p)])
            })
        })
        .collect()
}

/// Ranks the documents of a file for the queries of another, both `.safetensors` and given as their
/// bytes: the ranking that `maxsim rank` prints.
#[wasm_bindgen(js_name = rankFiles, unchecked_return_type = "Ranking[]")]
pub fn rank_files(
    #[wasm_bindgen(unchecked_param_type = "Uint8Array")] queries: &JsValue,
    #[wasm_bindgen(unchecked_param_type = "Uint8Array")] documents: &JsValue,
    #[wasm_bindgen(unchecked_param_type = "number")] k: &JsValue,
    #[wasm_bindgen(unchecked_optional_param_type = "RankOptions")] options: &JsValue,
) -> Result<Array> {
    let none = &JsValue::UNDEFINED;
    let queries = Tokens::from_safetensors(queries, none)?;
    let documents = Tokens::from_safetensors(documents, none)?;
    rank(&queries, &documents, k, options)
}

#[wasm_bindgen]
impl Scores {
    /// `[queries, documents]`, `[queries, k]` of candidates, or `[pairs]`.
    #[wasm_bindgen(getter, unchecked_return_type = "number[]")]
    pub fn shape(&self) -> Array {
        let shape = match self.scores.shape() {
            ScoreShape::Cross { n_queries, n_documents } => vec![n_queries, n_documents],
            ScoreShape::Candidates { n_queries, k } => vec![n_queries, k],
            other => vec![other.n_scores()],
        };
        shape.into_iter().map(|n| JsValue::from(n as f64)).collect()
    }

    /// The scores in the order of the pairing, row-major: a copy.
    pub fn values(&self) -> Float32Array {
        Float32Array::from(self.scores.values())
    }

    /// Per score and query token, the index of the winning token within its document, -1 where
    /// there is none; `undefined` where winners were not asked for.
    #[wasm_bindgen(unchecked_return_type = "Int32Array | undefined")]
    pub fn winners(&self) -> Option<Int32Array> {
        self.scores.winners().map(Int32Array::from)
    }

    /// Per score and query token, the similarity of the match; `undefined` where token scores were
    /// not asked for.
    #[wasm_bindgen(js_name = tokenScores, unchecked_return_type = "Float32Array | undefined")]
    pub fn token_scores(&self) -> Option<Float32Array> {
        self.scores.token_scores().map(Float32Array::from)
    }

    /// First entry, and the one after the last, that `winners` and `tokenScores` have of a score;
    /// `undefined` where neither was asked for.
    #[wasm_bindgen(js_name = tokenRange)]
    #[wasm_bindgen(unchecked_return_type = "[start: number, end: number] | undefined")]
    pub fn token_range(
        &self,
        #[wasm_bindgen(unchecked_param_type = "number")] score: &JsValue,
    ) -> Result<Option<Array>> {
        let (score, n_scores) = (count(score, "score")?, self.scores.values().len());
        if score >= n_scores {
            return error(format!("score: expected a number below {n_scores}, found {score}"));
        }
        let range = self.scores.token_offsets().map(|offsets| offsets.range(score));
        let ends = range.map(|range| [range.start, range.end]);
        Ok(ends.map(|ends| ends.into_iter().map(|end| JsValue::from(end as f64)).collect()))
    }

    /// The best `k` documents of each query. Pairs, which are in any order, have none.
    #[wasm_bindgen(js_name = topK, unchecked_return_type = "Ranking[]")]
    pub fn top_k(
        &self,
        #[wasm_bindgen(unchecked_param_type = "number")] k: &JsValue,
    ) -> Result<Array> {
        let rankings = self.scores.top_k_of(&self.pairing, &self.documents, count(k, "k")?)?;
        rankings.iter().map(|ranking| shown(ranking, || None)).collect()
    }
}

fn similarity(options: &Options) -> Result<ScoreOptions> {
    let normalize = options.flag("normalize")?;
    let wanted = ScoreOptions::default().normalize(normalize);
    Ok(wanted.angular(options.flag("angular")?))
}

fn read_pairing(value: &JsValue) -> Result<Pairing> {
    let keys = ["ownCandidates", "candidates", "k", "queries", "documents"];
    let pairing = Options::read(value, &keys)?;
    let mut given = [None, None, None, None, None];
    for (value, key) in given.iter_mut().zip(keys) {
        *value = pairing.get(key)?;
    }
    match given {
        [Some(k), None, None, None, None] => {
            Ok(Pairing::own_candidates(count(&k, "ownCandidates")?))
        }
        [None, Some(ids), Some(k), None, None] => {
            Ok(Pairing::candidates(&integers(&ids, "candidates")?, count(&k, "k")?)?)
        }
        [None, None, None, Some(queries), Some(documents)] => {
            let queries = integers(&queries, "queries")?;
            Ok(Pairing::pairs(&queries, &integers(&documents, "documents")?)?)
        }
        _ => error(
            "pairing: expected { ownCandidates }, { candidates, k } or { queries, documents }",
        ),
    }
}

/// A ranking as JavaScript has it, with the winners of each of its documents.
fn shown<'a>(ranking: &Ranking, mut winners: impl FnMut() -> Option<&'a [i32]>) -> Result<JsValue> {
    let documents = Array::new();
    for ranked in &ranking.ranked {
        let document = object(&[
            ("document", ranked.id.into()),
            ("score", ranked.score.into()),
            ("hasTokens", ranked.has_tokens.into()),
        ])?;
        if let Some(winners) = winners() {
            set(&document, "winners", &Int32Array::from(winners))?;
        }
        documents.push(&document);
    }
    let counts = [ranking.n_nan, ranking.n_empty].map(|n| JsValue::from(n as f64));
    let [n_nan, n_empty] = counts;
    Ok(object(&[("documents", documents.into()), ("nNan", n_nan), ("nEmpty", n_empty)])?.into())
}

fn object(entries: &[(&str, JsValue)]) -> Result<Object> {
    let object = Object::new();
    entries.iter().try_for_each(|(key, value)| set(&object, key, value))?;
    Ok(object)
}

fn set(object: &Object, key: &str, value: &JsValue) -> Result<()> {
    match Reflect::set(object, &key.into(), value) {
        Ok(_) => Ok(()),
        Err(_) => error(format!("{key}: it could not be returned")),
    }
}
