//! Writes results: to standard output, a file or a pipe, as a table, JSON or a TREC run.

mod json;
mod new_file;
mod place;
mod table;
mod trec;

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Seek, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use maxsim::{Ranked, Ranking};

pub(crate) use self::new_file::NewFile;
use self::place::Place;
use crate::args::{Format, RankArgs};
use crate::judging::Judging;
use crate::judging::metrics::Metrics;
use crate::rank::winners::Winners;

/// A ranking and its inputs, to print.
#[derive(Clone, Copy, Debug)]
pub struct Results<'a> {
    /// Per query its best documents.
    pub rankings: &'a [Ranking],
    /// Names of queries and documents, and the relevant documents.
    pub judging: &'a Judging,
    /// Metrics, where there are judgements.
    pub metrics: Option<Metrics>,
    /// Places proven, per query, where compressed documents were searched.
    pub proven: Option<&'a [usize]>,
    /// Matched tokens of each query's documents, where they were asked for.
    pub winners: Option<&'a [Winners]>,
    /// Whether scores are minus angular distances, which are shown instead.
    pub distances: bool,
}

impl Results<'_> {
    /// The score that is shown of a document, or its distance: +∞ without tokens.
    fn shown(&self, document: &Ranked) -> f32 {
        match (self.distances, document.has_tokens) {
            (false, _) => document.score,
            (true, false) => f32::INFINITY,
            // 0, not −0.
            (true, true) => 0.0 - document.score,
        }
    }
}

/// Destination of results.
#[derive(Clone, Debug)]
pub enum Destination {
    /// Standard output.
    Stdout,
    /// A file, written beside its place and then moved there.
    File(PathBuf),
    /// A pipe or a device: something that a file must not take the place of.
    Stream(PathBuf),
}

impl Destination {
    /// Finds out, before any work is done, whether the output can be written.
    pub fn new(args: &RankArgs) -> Result<Destination> {
        ensure!(
            !(args.winners && args.format == Format::Trec),
            "--winners: a TREC run has no column for them; use --format json or table"
        );
        let Some(path) = &args.output else { return Ok(Destination::Stdout) };
        let inputs = [&args.queries, &args.documents].into_iter();
        let inputs = inputs.chain(&args.texts).chain(args.judging.inputs()).chain(&args.screen);
        let inputs = inputs.chain(args.files.inputs()).chain(args.selection.inputs());
        let inputs = inputs.chain(&args.weights);
        Destination::of(path, inputs).with_context(|| format!("--output {}", path.display()))
    }

    /// As [`Destination::new`], for a path that is none of the inputs.
    pub fn of<'a>(
        path: &Path,
        mut inputs: impl Iterator<Item = &'a PathBuf>,
    ) -> Result<Destination> {
        if let Ok(real) = path.canonicalize() {
            let is_input = |input: &PathBuf| input.canonicalize().is_ok_and(|i| i == real);
            ensure!(!inputs.any(is_input), "is an input of this run");
        }
        // A link stays, what it points to is replaced.
        let place = match place::of(path)? {
            Place::Stdout => return Ok(Destination::Stdout),
            Place::Descriptor(path) => return Ok(Destination::Stream(path)),
            Place::Path(place) => place,
        };
        match std::fs::metadata(&place) {
            Ok(found) if found.is_dir() => bail!("is a folder; name a file"),
            Ok(found) if !found.is_file() => return Ok(Destination::Stream(place)),
            _ => {}
        }
        NewFile::check(&place)?;
        Ok(Destination::File(place))
    }

    /// Writes the results. A file appears only when it is complete.
    pub fn write(&self, format: Format, results: &Results<'_>) -> Result<()> {
        let columns = if matches!(self, Destination::Stdout) { terminal_columns() } else { None };
        self.write_with(|out| Ok(render(format, results, columns, out)?))
    }

    /// Whether what was written can be written over: [`Destination::write_with_head`].
    pub fn is_file(&self) -> bool {
        matches!(self, Destination::File(_))
    }

    /// Writes the output of `write`. A file appears only when it is complete.
    pub fn write_with(&self, write: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
        self.write_with_head(|out| write(out).map(|()| Vec::new()))
    }

    /// Writes as [`Destination::write_with`]. The bytes that `write` returns overwrite the
    /// beginning of the file: a header that is only known at the end.
    pub fn write_with_head(
        &self,
        write: impl FnOnce(&mut dyn Write) -> Result<Vec<u8>>,
    ) -> Result<()> {
        match self {
            Destination::Stdout => buffered(&mut io::stdout().lock(), write)
                .map(drop)
                .context("writing to standard output failed"),
            Destination::Stream(path) => stream(path)
                .map_err(anyhow::Error::from)
                .and_then(|mut stream| buffered(&mut stream, write).map(drop))
                .with_context(|| path.display().to_string()),
            Destination::File(path) => {
                let mut file = NewFile::create(path)?;
                let whole = || -> Result<()> {
                    let head = buffered(file.file(), write)?;
                    file.file().rewind()?;
                    file.file().write_all(&head)?;
                    Ok(file.publish()?)
                };
                whole().with_context(|| path.display().to_string())
            }
        }
    }
}

/// Hands `write` a buffer before `out`, and what it returns on.
fn buffered(
    out: &mut dyn Write,
    write: impl FnOnce(&mut dyn Write) -> Result<Vec<u8>>,
) -> Result<Vec<u8>> {
    let mut out = BufWriter::new(out);
    let head = write(&mut out)?;
    out.flush()?;
    Ok(head)
}

/// Opens what is written to where it is.
fn stream(path: &Path) -> io::Result<File> {
    // A descriptor may be a file that has something in it already.
    let is_file = std::fs::metadata(path)?.is_file();
    File::options().write(true).append(is_file).open(path)
}

/// A warning about results in this form, if there is one.
pub fn warning(format: Format, results: &Results<'_>) -> Option<String> {
    match format {
        Format::Trec => trec::warning(results.rankings, &results.judging.documents),
        Format::Table | Format::Json => None,
    }
}

/// Width of the terminal that standard output goes to, if it is one.
fn terminal_columns() -> Option<usize> {
    if !io::stdout().is_terminal() {
        return None;
    }
    let (_, columns) = console::Term::stdout().size_checked()?;
    Some(usize::from(columns)).filter(|&columns| columns > 0)
}

fn render(
    format: Format,
    results: &Results<'_>,
    columns: Option<usize>,
    mut out: &mut dyn Write,
) -> io::Result<()> {
    match format {
        Format::Table => table::write(results, columns, &mut out),
        Format::Json => json::write(results, &mut out),
        Format::Trec => trec::write(results, &mut out),
    }
}
