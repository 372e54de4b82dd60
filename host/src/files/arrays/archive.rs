//! Token embeddings in a `.npz` file, the zip archive of `.npy` files that numpy's `savez` and
//! `savez_compressed` write: tensors by the arrays' names, or an item each.

use std::io::{Cursor, Read};
use std::ops::Range;
use std::sync::Arc;

use zip::{CompressionMethod, ZipArchive};

use super::MAX_HEADER_BYTES;
use crate::files::bytes::FileBytes;
use crate::files::error::{Context, FileError, Message, Result, ensure};
use crate::files::items::Beside;
use crate::files::npy;
use crate::files::options::FileOptions;
use crate::files::tensors::Listed;
use crate::files::token_file::Opened;

/// Bytes that arrays may always be unpacked to, however they are packed,
const MAX_UNPACKED_BYTES: u64 = 256 << 20;

/// and the multiple of the archive's size that they may be unpacked to beyond: padding packs well,
/// but no embeddings pack like this.
const MAX_RATIO: u64 = 200;

/// Opens an archive. Stored arrays are read in place; packed ones, and those of an item each, are
/// copied into memory.
pub(in crate::files) fn open(
    bytes: FileBytes,
    options: &FileOptions,
    files: &[Beside<'_>],
) -> Result<Opened> {
    let bytes = Arc::new(bytes);
    let archive = Archive::new(&bytes)?;
    let read = |i: usize| match &archive.members[i] {
        Member { stored: Some(place), .. } => Ok(FileBytes::part(bytes.clone(), place.clone())),
        member => Ok(FileBytes::in_memory(archive.unpacked(member)?)),
    };
    let mut opened = super::open(&archive.arrays, options, files, read)?;
    let warning = archive.others.first().map(|first| {
        let n = archive.others.len();
        let members = if n == 1 { "member that is" } else { "members that are" };
        Message::new(format!("{n} {members} not .npy, the first `{first}`: not read"), None)
    });
    opened.warnings.extend(warning);
    Ok(opened)
}

/// An archive whose headers are read.
struct Archive<'a> {
    zip: ZipArchive<Cursor<&'a [u8]>>,
    members: Vec<Member>,
    arrays: Vec<Listed>,
    /// Names of other members.
    others: Vec<String>,
}

/// Position of an array in an archive.
struct Member {
    index: usize,
    size: u64,
    /// Bytes of the array in the file, where it is stored as it is.
    stored: Option<Range<usize>>,
}

impl<'a> Archive<'a> {
    fn new(bytes: &'a [u8]) -> Result<Archive<'a>> {
        let zip = ZipArchive::new(Cursor::new(bytes)).map_err(FileError::of);
        let zip = zip.context("not an npz file")?;
        let mut archive =
            Archive { zip, members: Vec::new(), arrays: Vec::new(), others: Vec::new() };
        let mut total = 0u64;
        for index in 0..archive.zip.len() {
            let name = archive.name(index)?;
            let Some(stem) = stem(&name) else {
                archive.others.push(name);
                continue;
            };
            let member = archive.member(index, bytes.len()).with_context(|| name.clone())?;
            total = total.saturating_add(member.size);
            archive.arrays.push(archive.listed(stem, &member).with_context(|| name.clone())?);
            archive.members.push(member);
        }
        ensure!(
            total <= MAX_UNPACKED_BYTES.max((bytes.len() as u64).saturating_mul(MAX_RATIO)),
            "{} bytes would unpack to {total}; save the arrays with numpy.savez, which does not \
             compress",
            bytes.len()
        );
        Ok(archive)
    }

    fn name(&mut self, index: usize) -> Result<String> {
        let entry = self.zip.by_index_raw(index).map_err(FileError::of)?;
        Ok(entry.name().map_err(FileError::of)?.into_owned())
    }

    fn member(&mut self, index: usize, file_len: usize) -> Result<Member> {
        let entry = self.zip.by_index(index).map_err(FileError::of)?;
        let size = entry.size();
        if entry.compression() != CompressionMethod::Stored {
            return Ok(Member { index, size, stored: None });
        }
        let start = entry.data_start().and_then(|start| usize::try_from(start).ok());
        let end = start.and_then(|start| start.checked_add(usize::try_from(size).ok()?));
        let place = start.zip(end).filter(|&(_, end)| end <= file_len);
        let (start, end) = place.context("it lies outside the file")?;
        Ok(Member { index, size, stored: Some(start..end) })
    }

    fn listed(&self, name: &str, member: &Member) -> Result<Listed> {
        let mut head = Vec::new();
        let mut zip = self.zip.clone();
        let entry = zip.by_index(member.index).map_err(FileError::of)?;
        entry.take(MAX_HEADER_BYTES).read_to_end(&mut head)?;
        let (header, _) = npy::array(&head)?;
        Ok(Listed { name: name.into(), dtype: header.dtype(), shape: header.shape })
    }

    /// Unpacks a member. Its stated size is not trusted: memory grows as bytes arrive.
    fn unpacked(&self, member: &Member) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut zip = self.zip.clone();
        let entry = zip.by_index(member.index).map_err(FileError::of)?;
        entry.take(member.size.saturating_add(1)).read_to_end(&mut bytes)?;
        ensure!(bytes.len() as u64 == member.size, "it does not unpack to {} bytes", member.size);
        Ok(bytes)
    }
}

/// The name of an array: that of its file without `.npy`.
fn stem(name: &str) -> Option<&str> {
    let (stem, ending) = name.rsplit_once('.')?;
    ending.eq_ignore_ascii_case("npy").then_some(stem)
}
