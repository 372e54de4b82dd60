//! A page image whose patches are tokens of a document.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use imagesize::{ImageType, blob_size, image_type};

/// How a picture is cut into patches, which are consecutive tokens, line by line from the top left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Patches of a line.
    pub columns: u32,
    /// Lines.
    pub rows: u32,
    /// The number of the first patch's token.
    pub first: u32,
}

/// A picture, and how it is cut.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    /// Its bytes as an address of data.
    pub(super) address: String,
    /// Width and height in pixels.
    pub(super) size: [usize; 2],
    /// Its patches.
    pub grid: Grid,
}

impl Picture {
    /// Reads a file.
    ///
    /// # Errors
    /// Those of [`Picture::new`].
    pub fn open(path: &Path, grid: Grid) -> Result<Picture> {
        let named = || path.display().to_string();
        Picture::new(&fs::read(path).with_context(named)?, grid).with_context(named)
    }

    /// A picture of a PNG, JPEG, WebP or GIF file.
    ///
    /// # Errors
    /// Where the bytes are none of these, or the grid has no patch.
    pub fn new(bytes: &[u8], grid: Grid) -> Result<Picture> {
        ensure!(grid.columns > 0 && grid.rows > 0, "a grid has a line and a column at least");
        let kind = match image_type(bytes) {
            Ok(ImageType::Png) => "png",
            Ok(ImageType::Jpeg) => "jpeg",
            Ok(ImageType::Webp) => "webp",
            Ok(ImageType::Gif) => "gif",
            _ => bail!("expected a picture that browsers show: PNG, JPEG, WebP or GIF"),
        };
        let size = blob_size(bytes).context("the picture's size")?;
        ensure!(size.width > 0 && size.height > 0, "the picture has no pixels");
        let address = format!("data:image/{kind};base64,{}", STANDARD.encode(bytes));
        Ok(Picture { address, size: [size.width, size.height], grid })
    }

    /// The patch of a token: its column and line.
    pub(super) fn place(&self, token: u32) -> Option<[u32; 2]> {
        let Grid { columns, rows, first } = self.grid;
        let patch = token.checked_sub(first)?;
        (patch / columns < rows).then_some([patch % columns, patch / columns])
    }
}
