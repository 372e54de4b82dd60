//! `maxsim explain`: which token of a document each token of a query chose, and how well, as text,
//! a page, a picture or JSON.

mod page;
mod picture;
mod svg;
mod text;
mod words;

use anyhow::{Context, Result, bail, ensure};
use maxsim::format::{Element, ScaleType, with_format};
use maxsim::residual::ResidualTokens;
use maxsim::{Device, Pairing, ScoreOptions, TokenLayout, Tokens};
use serde::Serialize;

use crate::args::{ExplainArgs, ExplainFormat};
use crate::documents::{DocumentFile, Documents};
use crate::input::{Change, ReadItems, TokenFile};
use crate::judging::Judging;
use crate::judging::ids::Side;
use crate::output::Destination;
use crate::progress::progress_bar;
use crate::rank::stream::Request;
use crate::rank::{self, CheckedSides, pairs, queries, say};
use crate::selection::Selected;
pub use picture::{Grid, Picture};

/// A token of the query or of the document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Word {
    /// Its place among all that the file has of the item, valid or not, from 0.
    pub token: u32,
    /// What it stands for, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub word: Option<String>,
}

impl Word {
    /// The word, or else the number.
    pub fn label(&self) -> String {
        self.word.clone().unwrap_or_else(|| format!("#{}", self.token))
    }
}

/// A token of the query with what it chose.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Match {
    /// The query's token.
    #[serde(flatten)]
    pub word: Word,
    /// The document's token that it chose, by its place among the valid ones; none in a document
    /// without tokens.
    #[serde(skip)]
    pub chosen: Option<usize>,
    /// How similar they are.
    pub similarity: f32,
}

/// A query and a document, and how their tokens match.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// What query and document are called.
    pub names: [String; 2],
    /// The score of the pair.
    pub score: f32,
    /// The query's valid tokens, and what they chose.
    pub query: Vec<Match>,
    /// The document's valid tokens.
    pub document: Vec<Word>,
    /// How similar each token of the query is to each of the document: `[query, document]`, in f32.
    /// Of compressed documents, to what they decode to.
    pub similarities: Vec<f32>,
    /// The page whose patches are tokens of the document.
    pub picture: Option<Picture>,
}

impl Explanation {
    /// Explains the score of a query and a document by their rows `[tokens, dim]`, all of them
    /// valid: tokens have numbers, and words where `words` has some (of the query, of the
    /// document).
    ///
    /// # Errors
    /// Where sizes do not agree, and where a number is NaN.
    pub fn of_rows(
        query: &[f32],
        document: &[f32],
        dim: usize,
        normalize: bool,
        words: [Option<Vec<String>>; 2],
    ) -> Result<Explanation> {
        ensure!(dim > 0, "rows have no elements");
        let lens = [query, document].map(|rows| rows.len() / dim);
        for (rows, len) in [query, document].iter().zip(lens) {
            ensure!(rows.len() == len * dim, "{} numbers are no rows of {dim}", rows.len());
        }
        let [of_query, of_document] = words;
        let of_query = words::numbered(lens[0], of_query).context("words of the query")?;
        let of_document = words::numbered(lens[1], of_document).context("words of the document")?;
        let tokens = |rows, len| Tokens::padded(rows, 1, len, dim);
        let options = ScoreOptions::default().normalize(normalize).winners(true).token_scores(true);
        let (queries, documents) = (tokens(query, lens[0])?, tokens(document, lens[1])?);
        let scores = Device::cpu().score_with(&queries, &documents, &Pairing::cross(), &options)?;
        let (Some(winners), Some(found)) = (scores.winners(), scores.token_scores()) else {
            bail!("the engine found no winners");
        };
        let query_rows = (query, normalize);
        let similarities = similarities(query_rows, document, dim, lens)?;
        let matches = of_query.into_iter().zip(winners.iter().zip(found));
        let explanation = Explanation {
            names: ["query".into(), "document".into()],
            score: scores.values()[0],
            query: matches.map(matched).collect(),
            document: of_document,
            similarities,
            picture: None,
        };
        explanation.check()?;
        Ok(explanation)
    }

    /// Shows tokens of the document as patches of a picture.
    ///
    /// # Errors
    /// Where the document has not all tokens of the picture's grid.
    pub fn with_picture(self, picture: Picture) -> Result<Explanation> {
        let Grid { columns, rows, first } = picture.grid;
        let last = u64::from(first) + u64::from(columns) * u64::from(rows) - 1;
        let has = self.document.last().map(|word| u64::from(word.token));
        ensure!(
            has.is_some_and(|has| last <= has),
            "{columns} × {rows} patches from token {first} on end with token {last}, and the \
             document's last is {}; give the grid that the model has cut the page into",
            has.map_or_else(|| "none".into(), |has| format!("token {has}"))
        );
        Ok(Explanation { picture: Some(picture), ..self })
    }

    /// Refuses scores that say nothing.
    fn check(&self) -> Result<()> {
        ensure!(!self.score.is_nan(), "the score is NaN: a token has a NaN in it");
        // JSON has no such numbers, and colours none for them.
        let is_finite = self.score.is_finite() && self.similarities.iter().all(|x| x.is_finite());
        ensure!(is_finite, "a similarity is infinite or NaN: an element is, or the sum overflows");
        Ok(())
    }

    /// The similarities of a token of the query.
    pub fn row(&self, s: usize) -> &[f32] {
        let len = self.document.len();
        &self.similarities[s * len..][..len]
    }

    /// For each token of the document the similarities of those that chose it, added.
    pub fn shares(&self) -> Vec<f32> {
        let mut shares = vec![0.0; self.document.len()];
        for of_query in &self.query {
            if let Some(chosen) = of_query.chosen {
                shares[chosen] += of_query.similarity;
            }
        }
        shares
    }

    /// The whole as a page that opens from disk: HTML, with the picture in it.
    pub fn html(&self) -> String {
        page::html(self)
    }

    /// The heat map alone, as SVG.
    pub fn svg(&self) -> String {
        svg::svg(self)
    }

    /// The matches as lines of text.
    pub fn text(&self) -> String {
        text::text(self)
    }

    /// The matches as one JSON object; similarities are rows, one for each token of the query.
    ///
    /// # Errors
    /// Those of the serialiser.
    pub fn json(&self) -> Result<String> {
        #[derive(Serialize)]
        struct Object<'a> {
            query: &'a str,
            document: &'a str,
            score: f32,
            matches: Vec<OfToken<'a>>,
            document_tokens: &'a [Word],
            similarities: Vec<&'a [f32]>,
        }
        #[derive(Serialize)]
        struct OfToken<'a> {
            #[serde(flatten)]
            word: &'a Match,
            /// The number of the document's token.
            chosen: Option<u32>,
        }
        let matches = self.query.iter().map(|word| OfToken {
            word,
            chosen: word.chosen.map(|chosen| self.document[chosen].token),
        });
        let object = Object {
            query: &self.names[0],
            document: &self.names[1],
            score: self.score,
            matches: matches.collect(),
            document_tokens: &self.document,
            similarities: (0..self.query.len()).map(|s| self.row(s)).collect(),
        };
        Ok(serde_json::to_string(&object)? + "\n")
    }
}

fn matched((word, (&winner, &similarity)): (Word, (&i32, &f32))) -> Match {
    Match { word, chosen: usize::try_from(winner).ok(), similarity }
}

/// `[query, document]`: each of the document's tokens is a document of its own.
fn similarities(
    (query, normalize): (&[f32], bool),
    document: &[f32],
    dim: usize,
    [of_query, of_document]: [usize; 2],
) -> Result<Vec<f32>> {
    if of_query == 0 || of_document == 0 {
        return Ok(Vec::new());
    }
    let options = ScoreOptions::default().normalize(normalize).token_scores(true);
    let queries = Tokens::padded(query, 1, of_query, dim)?;
    let documents = Tokens::padded(document, of_document, 1, dim)?;
    let scores = Device::cpu().score_with(&queries, &documents, &Pairing::cross(), &options)?;
    let found = scores.token_scores().context("the engine gave no similarities")?;
    let of = |s: usize| (0..of_document).map(move |t| found[t * of_query + s]);
    Ok((0..of_query).flat_map(of).collect())
}

/// Runs the command.
pub fn explain(args: &ExplainArgs) -> Result<()> {
    let destination = destination(args)?;
    let picture = match (&args.image, args.grid) {
        (Some(path), Some([columns, rows])) => {
            Some(Picture::open(path, Grid { columns, rows, first: args.first_patch })?)
        }
        _ => None,
    };
    let queries = TokenFile::open_with(&args.queries, &args.files.files.queries())?;
    let queries = queries.with_weights(None, args.mean)?;
    let document_file = DocumentFile::open_with(&args.documents, &args.files.documents())?;
    let documents = document_file.documents()?;
    let mut notes = Vec::new();
    let sides = CheckedSides {
        queries: &args.queries,
        documents: &args.documents,
        convert: args.convert,
        allow_infinite: false,
    };
    let queries = rank::checked(queries, &documents, &sides, &mut notes)?;
    let ids = [queries.ids(Side::Queries)?, document_file.ids(documents.n_items())?];
    let [of_queries, of_documents] = ids;
    let judging = Judging::open(&(&args.judging).into(), None, of_queries, of_documents)?;
    let query = judging.queries.require(&args.query).context("--query")?;
    let document = judging.documents.require(&args.document).context("--document")?;
    let pair = Pair { args, queries: &queries, documents: &documents, query, document };
    let mut explanation = pair.explained()?;
    explanation.names = [
        format!("query {}", judging.queries.get(query)),
        format!("document {}", judging.documents.get(document)),
    ];
    for (path, ids, item, words) in [
        (&args.query_texts, &judging.queries, query, WordsOf::Query),
        (&args.texts, &judging.documents, document, WordsOf::Document),
    ] {
        let Some(path) = path else { continue };
        let found = words::open(path, ids, item)?;
        explanation.take_words(words, found).with_context(|| path.display().to_string())?;
    }
    if let Some(picture) = picture {
        explanation = explanation.with_picture(picture).context("--grid")?;
    }
    queries.check_unchanged(Change::Content)?;
    document_file.check_unchanged(Change::Content)?;
    let written = match args.format {
        ExplainFormat::Text => explanation.text(),
        ExplainFormat::Json => explanation.json()?,
        ExplainFormat::Html => explanation.html(),
        ExplainFormat::Svg => explanation.svg(),
    };
    destination.write_with(|out| Ok(out.write_all(written.as_bytes())?))?;
    notes.iter().for_each(|note| say(note));
    let warnings = queries.warnings().chain(documents.warnings());
    warnings.for_each(|warning| say(&format!("warning: {warning}")));
    Ok(())
}

fn destination(args: &ExplainArgs) -> Result<Destination> {
    let Some(path) = &args.output else { return Ok(Destination::Stdout) };
    let inputs = [&args.queries, &args.documents].into_iter().chain(&args.judging.query_ids);
    let inputs = inputs.chain(&args.judging.document_ids);
    let inputs = inputs.chain(&args.texts).chain(&args.query_texts).chain(&args.image);
    Destination::of(path, inputs.chain(args.files.inputs()))
        .with_context(|| format!("--output {}", path.display()))
}

/// Whose words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WordsOf {
    Query,
    Document,
}

impl Explanation {
    /// Gives tokens their words: one for each that the item has, up to the last valid one.
    fn take_words(&mut self, of: WordsOf, words: Vec<String>) -> Result<()> {
        let tokens: Vec<&mut Word> = match of {
            WordsOf::Query => self.query.iter_mut().map(|of| &mut of.word).collect(),
            WordsOf::Document => self.document.iter_mut().collect(),
        };
        let wanted = tokens.last().map_or(0, |last| last.token as usize + 1);
        ensure!(
            words.len() == wanted,
            "{} tokens, where the token file has {wanted} of the item; list a word for each, as \
             the model's tokenizer gives them",
            words.len()
        );
        for word in tokens {
            word.word = Some(words[word.token as usize].clone());
        }
        Ok(())
    }
}

/// A pair of two files.
struct Pair<'a> {
    args: &'a ExplainArgs,
    queries: &'a TokenFile,
    documents: &'a Documents<'a>,
    query: u32,
    document: u32,
}

impl Pair<'_> {
    /// Scores the pair as `maxsim rank` does, and the similarities of decoded tokens besides.
    fn explained(&self) -> Result<Explanation> {
        let &Pair { args, queries, documents, query, document } = self;
        let (q, d) = (query as usize, document as usize);
        let word = |token: usize| Word { token: token as u32, word: None };
        let of_query: Vec<Word> = (0..queries.layout().item_len(q))
            .map(|token| word(queries.stored_token(q, token)))
            .collect();
        let of_document: Vec<Word> = (0..documents.layout().item_len(d))
            .map(|token| word(documents.stored_token(d, token)))
            .collect();
        let (dim, lens) = (queries.layout().dim(), [of_query.len(), of_document.len()]);
        let (score, matches) = self.scored(of_query)?;
        let rows = decoded(documents, d)?;
        let similarities = similarities((&rows_of(queries, q)?, args.normalize), &rows, dim, lens)?;
        let names = Default::default();
        let explanation = Explanation {
            names,
            score,
            query: matches,
            document: of_document,
            similarities,
            picture: None,
        };
        explanation.check()?;
        Ok(explanation)
    }

    /// The score of the pair, and what each token of the query chose.
    fn scored(&self, of_query: Vec<Word>) -> Result<(f32, Vec<Match>)> {
        let &Pair { args, queries, documents, query, document } = self;
        let mut notes = Vec::new();
        let query_scales = match documents {
            Documents::Tokens(file) => {
                queries::scales(queries, file.contents().format, &mut notes)?
            }
            Documents::Residual(..) => ScaleType::default(),
        };
        let options = ScoreOptions::default().normalize(args.normalize);
        let request = Request {
            queries,
            documents,
            selected: &Selected::All,
            device: &Device::cpu(),
            devices: None,
            options: &options.winners(true).token_scores(true),
            query_scales,
            allow_infinite: false,
            top_k: 1,
            chunk_bytes: None,
            progress: &progress_bar(1, "pairs"),
        };
        let mut found = None;
        pairs::score(&request, &[[document, query]], |_, scores| {
            let (Some(winners), Some(similarities)) = (scores.winners(), scores.token_scores())
            else {
                bail!("the engine found no winners");
            };
            let matches = of_query.iter().cloned().zip(winners.iter().zip(similarities));
            found = Some((scores.values()[0], matches.map(matched).collect()));
            Ok(())
        })?;
        request.progress.finish_and_clear();
        found.context("the pair was not scored")
    }
}

/// The valid rows of an item of a file in f32, decoded.
fn rows_of(file: &TokenFile, item: usize) -> Result<Vec<f32>> {
    with_format!(file.contents().format, {
        element T => {
            let tokens = file.elements_of::<T>(item..item + 1)?;
            let values: Vec<f32> = tokens.data().iter().map(|x| x.to_f32()).collect();
            Ok(valid_rows(&values, tokens.layout()))
        },
        codes F => {
            let tokens = file.codes_of::<F>(item..item + 1)?.dequantize()?;
            Ok(valid_rows(tokens.data(), tokens.layout()))
        },
        other => bail!("{other} embeddings are not read row by row"),
    })
}

/// The rows of a document in f32, decoded.
fn decoded(documents: &Documents<'_>, item: usize) -> Result<Vec<f32>> {
    match documents {
        Documents::Tokens(file) => rows_of(file, item),
        Documents::Residual(tokens, _) => {
            let [start, len] = tokens.layout().segments()[item].map(|n| n as usize);
            let (codec, row_bytes) = (tokens.codec().clone(), tokens.codec().row_bytes());
            let codes = &tokens.codes()[start..start + len];
            let residuals = &tokens.residuals()[start * row_bytes..(start + len) * row_bytes];
            let layout = TokenLayout::padded(1, len, codec.dim())?;
            let one = ResidualTokens::new(codec, codes, residuals, tokens.order(), layout)?;
            Ok(one.decode::<f32>()?.data().to_vec())
        }
    }
}

/// The rows of the one item of a layout.
fn valid_rows(rows: &[f32], layout: &TokenLayout) -> Vec<f32> {
    let [start, len] = layout.segments()[0].map(|n| n as usize * layout.dim());
    rows[start..start + len].to_vec()
}
