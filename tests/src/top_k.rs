//! Scores with ties, NaN, infinities and empty documents, and their rankings.

use maxsim::stream::{DeviceScores, DeviceTopK, PreparedScore, PreparedTopK, Queue};
use maxsim::{Device, DeviceTokens, Pairing, Ranked, Ranking, Result, ScoreOptions, Tokens, TopK};

use crate::losses::Numbers;

/// Scores of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Hardly any two are equal.
    Distinct,
    /// One of three numbers.
    Ties,
    /// One number.
    Equal,
    /// Falling: the first are the best.
    Falling,
    /// Zeros of both signs, infinities, the smallest and the largest numbers, NaN.
    Special,
    /// Few that are not NaN.
    Nan,
}

/// All of them.
pub const VALUES: [Values; 6] =
    [Values::Distinct, Values::Ties, Values::Equal, Values::Falling, Values::Special, Values::Nan];

/// Which documents have no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Empty {
    /// None.
    None,
    /// Every third.
    Third,
    /// All but every fiftieth.
    Most,
    /// All.
    All,
}

/// Documents of one token of one element, or of none, and queries of one token: a score is their
/// product.
#[derive(Debug)]
pub struct Corpus {
    values: Vec<f32>,
    offsets: Vec<i64>,
    queries: Vec<f32>,
}

impl Corpus {
    /// `n` documents, and `n_queries` queries, which turn rankings around and scale them.
    pub fn new(values: Values, empty: Empty, n: usize, n_queries: usize, seed: u64) -> Corpus {
        let mut numbers = Numbers(seed);
        let special = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, 1e-30, -1e30, f32::NAN, 1.0];
        let mut value = |i: usize| {
            let number = numbers.draw();
            let turn = ((number + 1.0) * 1e6) as usize;
            match values {
                Values::Distinct => number * 64.0,
                Values::Ties => (turn % 3) as f32 - 1.0,
                Values::Equal => 0.5,
                Values::Falling => 1.0 - i as f32 / (n + 1) as f32,
                Values::Special => special[turn % special.len()],
                Values::Nan if turn.is_multiple_of(40) => number,
                Values::Nan => f32::NAN,
            }
        };
        let has_tokens = |i: usize| match empty {
            Empty::None => true,
            Empty::Third => i % 3 != 1,
            Empty::Most => i.is_multiple_of(50),
            Empty::All => false,
        };
        let mut corpus = Corpus { values: Vec::new(), offsets: vec![0], queries: Vec::new() };
        for i in 0..n {
            let value = value(i);
            corpus.values.extend(has_tokens(i).then_some(value));
            corpus.offsets.push(corpus.values.len() as i64);
        }
        corpus.queries = (0..n_queries).map(|q| [1.0, -1.0, 0.5, -4.0][q % 4]).collect();
        corpus
    }

    /// Tokens of queries and documents.
    pub fn tokens(&self) -> Result<[Tokens<'_, f32>; 2]> {
        let queries = Tokens::padded(&self.queries, self.queries.len(), 1, 1)?;
        Ok([queries, Tokens::packed(&self.values, 1, &self.offsets)?])
    }

    /// Tokens of some consecutive documents.
    pub fn documents(&self, first: usize, end: usize) -> Result<Tokens<'_, f32>> {
        let start = self.offsets[first];
        let offsets: Vec<i64> = self.offsets[first..=end].iter().map(|at| at - start).collect();
        Tokens::packed(&self.values[start as usize..self.offsets[end] as usize], 1, &offsets)
    }
}

/// Scores on a device, and what is made ready to rank them.
#[derive(Debug)]
pub struct Scored {
    /// Both sides.
    pub tokens: [DeviceTokens<f32>; 2],
    /// The scores' work.
    pub work: PreparedScore,
    /// The selection.
    pub top_k: PreparedTopK,
    /// The scores.
    pub scores: DeviceScores,
}

impl Scored {
    /// Scores tokens, and makes ready the selection of the best k.
    pub fn new(
        device: &Device,
        [queries, documents]: [&Tokens<'_, f32>; 2],
        pairing: &Pairing,
        k: usize,
    ) -> Result<Scored> {
        let tokens = [device.upload(queries)?, device.upload(documents)?];
        let options = ScoreOptions::default();
        let work = device.prepare(&tokens[0], &tokens[1], pairing, &options)?;
        let top_k = device.prepare_top_k(&work, documents, k)?;
        let mut scores = work.new_scores()?;
        device.stream()?.score_into(&tokens[0], &tokens[1], &work, &mut scores)?;
        Ok(Scored { tokens, work, top_k, scores })
    }

    /// What the device selects.
    pub fn best(&self, device: &Device) -> Result<DeviceTopK> {
        let mut best = self.top_k.new_best()?;
        device.stream()?.top_k_into(&self.scores, &self.top_k, &mut best)?;
        Ok(best)
    }

    /// The rankings of the scores that the host reads: pairs are those of each query.
    pub fn expected(
        &self,
        pairing: &Pairing,
        pairs: &[[u32; 2]],
        k: usize,
    ) -> Result<Vec<Ranking>> {
        let (scores, documents) = (self.scores.read()?, self.tokens[1].layout());
        if pairs.is_empty() {
            return scores.top_k_of(pairing, &self.tokens[1], k);
        }
        let mut best = vec![TopK::new(k); self.tokens[0].layout().n_items()];
        for (&[query, id], &score) in pairs.iter().zip(scores.values()) {
            let has_tokens = documents.has_tokens(id as usize);
            best[query as usize].push(Ranked { id, score, has_tokens });
        }
        Ok(best.into_iter().map(TopK::into_ranking).collect())
    }
}

/// Checks rankings of a device against those of the host: a zero has no sign, and every NaN is one.
pub fn check(expected: &[Ranking], found: &[Ranking]) -> std::result::Result<(), String> {
    if expected.len() != found.len() {
        return Err(format!("{} rankings instead of {}", found.len(), expected.len()));
    }
    for (query, (expected, found)) in expected.iter().zip(found).enumerate() {
        let counts = |ranking: &Ranking| (ranking.ranked.len(), ranking.n_nan, ranking.n_empty);
        if counts(expected) != counts(found) {
            let (e, f) = (counts(expected), counts(found));
            return Err(format!("query {query}: {f:?} documents, NaN, empty instead of {e:?}"));
        }
        let bits = |x: f32| if x.is_nan() { f32::NAN.to_bits() } else { (x + 0.0).to_bits() };
        let same = |e: &Ranked, f: &Ranked| {
            (e.id, e.has_tokens, bits(e.score)) == (f.id, f.has_tokens, bits(f.score))
        };
        let mut pairs = expected.ranked.iter().zip(&found.ranked);
        if let Some(place) = pairs.position(|(e, f)| !same(e, f)) {
            let (e, f) = (expected.ranked[place], found.ranked[place]);
            return Err(format!("query {query}, place {place}: {f:?} instead of {e:?}"));
        }
    }
    Ok(())
}
