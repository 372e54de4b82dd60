//! What would help, in the names of this tool's options.

use anyhow::Error;
use maxsim::files::{Advice, FileError};

/// An error of the library's readers as this tool says it.
pub(crate) fn said(error: FileError) -> Error {
    Error::msg(error.with_advice(options))
}

/// As [`said`], of a file of residual-compressed tokens.
pub(crate) fn said_of_residual(error: FileError) -> Error {
    Error::msg(error.with_advice(|advice| match advice {
        Advice::NoTensor => {
            "leave --tensor out, or name that of the queries alone (--queries-tensor)".into()
        }
        other => options(other),
    }))
}

/// Names the options that would help.
pub(super) fn options(advice: &Advice) -> String {
    match advice {
        Advice::Tensor { name, has_others } => {
            let others = if *has_others { ", or another name" } else { "" };
            format!("use --tensor {name} for it{others}")
        }
        Advice::FirstTensor { name } => format!("--tensor {name} takes the first"),
        Advice::NoTensor => "leave --tensor out, or name the tensor of the other file alone \
                             (--queries-tensor, --documents-tensor)"
            .into(),
        Advice::Ignore { name } => format!("if it is not, use --ignore-tensor {name}"),
        Advice::LengthsFile => "--documents-lengths-file and the like name such a file".into(),
        Advice::TrailingZeros => {
            "give lengths or a mask, or use --trailing-zeros pad to leave the rows out, or \
             --trailing-zeros tokens if they are tokens"
                .into()
        }
        Advice::NoMap => {
            "run the command again, with --no-mmap if files may change at any time".into()
        }
        Advice::Residual => "only the documents of `maxsim rank` may be that: use the embeddings \
                             that they were made of"
            .into(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use maxsim::files::{FileFormat, FileOptions, TokenFile};

    use super::*;

    #[test]
    fn no_advice_names_the_library() {
        let name = || "x".to_string();
        for advice in [
            Advice::Tensor { name: name(), has_others: true },
            Advice::FirstTensor { name: name() },
            Advice::NoTensor,
            Advice::Ignore { name: name() },
            Advice::LengthsFile,
            Advice::TrailingZeros,
            Advice::NoMap,
            Advice::Residual,
        ] {
            let words = options(&advice);
            let names = ["FileOptions", "TrailingZeros", "ResidualFile"];
            assert!(names.iter().all(|name| !words.contains(name)), "{words}");
        }
    }

    #[test]
    fn errors_name_options() {
        let open = |header: &str| {
            let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
            let options = FileOptions::default().tensor("y");
            said(TokenFile::from_bytes(file, FileFormat::Safetensors, &options).unwrap_err())
        };
        let error = open(r#"{"x":{"dtype":"F32","shape":[0,1,1],"data_offsets":[0,0]}}"#);
        assert_eq!(
            error.to_string(),
            "no tensor `y` in the file; it has `x` F32 [0, 1, 1] (could be embeddings); use \
             --tensor x for it"
        );
        let error = open(r#"{"__metadata__":{"format":"maxsim-residual"}}"#).to_string();
        assert!(error.starts_with("the tokens are residual-compressed; only the documents of"));
    }
}
