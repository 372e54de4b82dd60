//! File formats by their names, and how to convert those that are not read.

use std::path::Path;

use super::error::{FileError, Result, bail};

/// File formats of token embeddings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileFormat {
    /// Tensor `embeddings`, with lengths where items have them.
    Safetensors,
    /// One padded array.
    Npy,
    /// A zip archive of arrays, as numpy's `savez` writes it.
    Npz,
    /// A folder of `.npy` files.
    Folder,
}

impl FileFormat {
    /// Finds the format by a file's ending, in upper or lower case; a folder is one of arrays.
    ///
    /// # Errors
    /// For any other ending. Where it is one of a known format, the error has a line of Python that
    /// converts such files.
    pub fn of(path: impl AsRef<Path>) -> Result<FileFormat, FileError> {
        let path = path.as_ref();
        let ending = path.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase);
        let ending = ending.unwrap_or_default();
        match ending.as_str() {
            "safetensors" => return Ok(FileFormat::Safetensors),
            "npy" => return Ok(FileFormat::Npy),
            "npz" => return Ok(FileFormat::Npz),
            _ => (),
        }
        if path.as_os_str() == "-" {
            bail!("standard input cannot be read; {}", python(STDIN, Path::new("tokens")));
        }
        if let Some((_, what, code)) =
            OTHERS.iter().find(|(endings, ..)| endings.contains(&&*ending))
        {
            bail!("{what} cannot be read; {}", python(code, path));
        }
        if path.is_dir() {
            return Ok(FileFormat::Folder);
        }
        bail!(
            "the name must end in .safetensors, .npy or .npz, or be that of a folder of .npy files"
        )
    }
}

/// Python for standard input.
const STDIN: &str = "import sys; open('{output}.safetensors', 'wb').write(sys.stdin.buffer.read())";

/// Endings of files that are not read, what they are, and Python that converts them. Lists of
/// `[len, dim]` matrices become packed rows with lengths; padded tensors stay padded, without
/// lengths that the file does not state.
const OTHERS: &[(&[&str], &str, &str)] = &[
    (
        &["pt", "pth", "bin", "ckpt"],
        "PyTorch files",
        "import torch, safetensors.torch as s; t = torch.load('{input}', map_location='cpu'); \
         s.save_file(t if isinstance(t, dict) else {'embeddings': t} if torch.is_tensor(t) else \
         {'embeddings': torch.cat(t), 'lengths': torch.tensor([len(x) for x in t])}, \
         '{output}.safetensors')",
    ),
    (
        &["pkl", "pickle"],
        "pickles",
        "import numpy as np, pickle, safetensors.numpy as s; t = pickle.load(open('{input}', \
         'rb')); \
         s.save_file({'embeddings': np.concatenate(t), 'lengths': np.array([len(x) for x in t])}, \
         '{output}.safetensors')",
    ),
    (
        &["parquet"],
        "Parquet files",
        "import numpy as np, pandas, safetensors.numpy as s; \
         t = [np.stack(x).astype('float32') for x in \
         pandas.read_parquet('{input}')['embeddings']]; \
         s.save_file({'embeddings': np.concatenate(t), 'lengths': np.array([len(x) for x in t])}, \
         '{output}.safetensors')",
    ),
    (
        &["arrow", "feather"],
        "Arrow files",
        "import numpy as np, pandas, safetensors.numpy as s; \
         t = [np.stack(x).astype('float32') for x in \
         pandas.read_feather('{input}')['embeddings']]; \
         s.save_file({'embeddings': np.concatenate(t), 'lengths': np.array([len(x) for x in t])}, \
         '{output}.safetensors')",
    ),
    (
        &["lance"],
        "Lance datasets",
        "import lance, numpy as np, safetensors.numpy as s; \
         c = lance.dataset('{input}').to_table(columns=['embeddings'])['embeddings'].to_pylist(); \
         t = [np.array(x, 'float32') for x in c]; \
         s.save_file({'embeddings': np.concatenate(t), 'lengths': np.array([len(x) for x in t])}, \
         '{output}.safetensors')",
    ),
];

/// A command line that runs code on a file, which is named where its name needs no quoting.
fn python(code: &str, path: &Path) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-".contains(c);
    let name = path.to_string_lossy();
    let path = if name.chars().all(is_plain) { path } else { Path::new("tokens") };
    let output = path.with_extension("");
    let code = code.replace("{input}", &path.to_string_lossy());
    format!("convert it: python3 -c \"{}\"", code.replace("{output}", &output.to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_are_read_in_any_case() {
        for (name, format) in [
            ("a.safetensors", FileFormat::Safetensors),
            ("a.SafeTensors", FileFormat::Safetensors),
            ("b.NPY", FileFormat::Npy),
            ("b.c.Npz", FileFormat::Npz),
        ] {
            assert_eq!(FileFormat::of(Path::new(name)).unwrap(), format);
        }
        assert_eq!(FileFormat::of(std::env::temp_dir()).unwrap(), FileFormat::Folder);
    }

    #[test]
    fn names_that_need_quotes_are_not_quoted() {
        let error = FileFormat::of(Path::new("it's a \"file\".pt")).unwrap_err().to_string();
        assert!(error.contains("torch.load('tokens'"), "{error}");
        let error = FileFormat::of(Path::new("a/b-1.PTH")).unwrap_err().to_string();
        assert!(error.contains("torch.load('a/b-1.PTH'"), "{error}");
    }
}
