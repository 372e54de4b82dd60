//! Tensors in the `.pt` files of ColBERT's indexes.
//!
//! Such a file is a ZIP archive of a pickle, which describes the tensors, and of their bytes. The
//! pickle is read by `pytorch-reader`, which knows the rebuilding of tensors and calls nothing,
//! whatever a pickle asks for; opcodes that are no part of that are errors. Objects other than
//! tensors, or another number of them than expected, are refused here.
//!
//! That reader wants a dictionary at the root, as model checkpoints have, where ColBERT saves
//! single tensors and pairs. So it gets a copy of the archive whose pickle is the same within
//! `{"root": …}`: two opcodes before and one after.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use pytorch_reader::{DType, PickleValue, PytorchReader, Tensor};
use tempfile::NamedTempFile;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use super::array::{Array, Kind};
use crate::interrupt::Unfinished;

/// The pickle of a tensor has some hundred bytes.
const MAX_PICKLE_BYTES: u64 = 1 << 16;

/// `PROTO 2`, with which `torch.save` starts every pickle by default.
const START: &[u8] = b"\x80\x02";

/// `EMPTY_DICT`, and `BINUNICODE` of the key.
const OPEN: &[u8] = b"}X\x04\x00\x00\x00root";

/// `SETITEM`, and `STOP`.
const CLOSE: &[u8] = b"s.";

/// The one tensor of a file.
pub(super) fn tensor(path: &Path) -> Result<Array> {
    let file = Opened::new(path)?;
    ensure!(is_tensor(&file.root), "expected a tensor, and nothing else");
    file.array("root")
}

/// The two tensors of a file.
pub(super) fn pair(path: &Path) -> Result<[Array; 2]> {
    let file = Opened::new(path)?;
    match &file.root {
        PickleValue::List(items) if items.len() == 2 && items.iter().all(is_tensor) => {
            Ok([file.array("root.0")?, file.array("root.1")?])
        }
        _ => bail!("expected a pair of tensors, and nothing else"),
    }
}

/// How the reader names tensors among values that it does not take apart.
fn is_tensor(value: &PickleValue) -> bool {
    matches!(value, PickleValue::Unsupported(name) if name == "torch.Tensor")
}

struct Opened {
    root: PickleValue,
    reader: PytorchReader,
    /// Must be there as long as tensors are read from it.
    _copy: Copy,
}

impl Opened {
    fn new(path: &Path) -> Result<Opened> {
        let copy = with_dictionary(path)?;
        let PickleValue::Dict(mut values) = PytorchReader::read_pickle_data(&copy.path, None)?
        else {
            bail!("the pickle is broken")
        };
        let root = values.remove("root").context("the pickle is broken")?;
        ensure!(values.is_empty(), "the pickle is broken");
        let reader = PytorchReader::new(&copy.path)?;
        Ok(Opened { root, reader, _copy: copy })
    }

    fn array(&self, name: &str) -> Result<Array> {
        let tensor: &Tensor = self.reader.get(name).context("expected a tensor")?;
        let kind = match tensor.dtype() {
            DType::F16 => Kind::F16,
            DType::BF16 => Kind::Bf16,
            DType::F32 => Kind::F32,
            DType::I32 => Kind::I32,
            DType::I64 => Kind::I64,
            DType::U8 => Kind::U8,
            other => bail!("elements are {other:?}, which is not supported in an index"),
        };
        Array::new(kind, tensor.shape(), tensor.read()?)
    }
}

/// A file that is gone with the run, and where the reader finds it.
struct Copy {
    file: File,
    path: PathBuf,
    /// `None` where the file has no name.
    _name: Option<Unfinished>,
}

impl Copy {
    fn new() -> Result<Copy> {
        #[cfg(target_os = "linux")]
        {
            use std::os::fd::AsRawFd;
            let file = tempfile::tempfile()?;
            let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
            if path.exists() {
                return Ok(Copy { file, path, _name: None });
            }
        }
        let (file, path) = NamedTempFile::new()?.keep()?;
        let name = Unfinished::of(path.clone());
        Ok(Copy { file, path, _name: Some(name) })
    }
}

/// A copy of the archive with its pickle put into a dictionary.
fn with_dictionary(path: &Path) -> Result<Copy> {
    let folder = std::env::temp_dir();
    let mut copy =
        Copy::new().with_context(|| format!("cannot write in the folder {}", folder.display()))?;
    let mut out = UntilError { file: &mut copy.file, has_failed: false };
    let written = write_with_dictionary(path, &mut out);
    let written = match out.has_failed {
        true => written.with_context(|| format!("writing a copy in {} failed", folder.display())),
        false => written,
    };
    written.map(|()| copy)
}

fn write_with_dictionary(path: &Path, out: &mut UntilError<'_>) -> Result<()> {
    let file = BufReader::new(File::open(path)?);
    let mut archive = ZipArchive::new(file).context("not a file that torch.save wrote")?;
    let mut writer = ZipWriter::new(out);
    let mut n_pickles = 0;
    for i in 0..archive.len() {
        let mut entry = archive.by_index_raw(i)?;
        // Compressed entries are refused, so that they take no more memory than the file.
        ensure!(entry.compression() == CompressionMethod::Stored, "entries are compressed");
        let name = entry.name()?.into_owned();
        if !name.ends_with("/data.pkl") {
            writer.raw_copy_file(entry)?;
            continue;
        }
        ensure!(entry.size() <= MAX_PICKLE_BYTES, "a pickle of {} bytes", entry.size());
        let mut pickle = Vec::new();
        entry.read_to_end(&mut pickle)?;
        let inner = pickle.strip_prefix(START).and_then(|rest| rest.strip_suffix(b"."));
        let inner = inner.context("not a pickle of protocol 2")?;
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        writer.start_file(name, options)?;
        writer.write_all(&[START, OPEN, inner, CLOSE].concat())?;
        n_pickles += 1;
    }
    ensure!(n_pickles == 1, "{n_pickles} pickles in the archive; expected one");
    writer.finish()?;
    Ok(())
}

/// A file that takes everything after the first error, and keeps nothing of it: the archive's
/// writer writes its end even where it is dropped, and would print that it could not.
struct UntilError<'a> {
    file: &'a mut File,
    has_failed: bool,
}

impl UntilError<'_> {
    fn noted<T>(&mut self, done: io::Result<T>) -> io::Result<T> {
        self.has_failed |= matches!(&done, Err(e) if e.kind() != io::ErrorKind::Interrupted);
        done
    }
}

impl Write for UntilError<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.has_failed {
            return Ok(bytes.len());
        }
        let done = self.file.write(bytes);
        self.noted(done)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for UntilError<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}
