//! Tensors of a file by their names: which are the embeddings, and what the others are to them.

use safetensors::Dtype;

use super::error::{Advice, FileError, Result};
use super::items::{Role, plain};
use super::options::FileOptions;

/// Tensors that a message lists.
const LISTED: usize = 16;

/// Default name of the embeddings.
const EMBEDDINGS: &str = "embeddings";

/// A tensor of a file, without its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub name: String,
    /// `None` for elements that are no numbers.
    pub dtype: Option<Dtype>,
    pub shape: Vec<usize>,
}

impl Listed {
    /// Guesses what the tensor could be, by its type and shape.
    fn looks_like(&self) -> Option<&'static str> {
        use Dtype::{BF16, BOOL, F8_E4M3, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
        match (self.dtype?, self.shape.len()) {
            (F16 | BF16 | F32 | F64 | F8_E4M3, 2 | 3) | (I8 | U8, 3) => Some("embeddings"),
            (BOOL | I8 | U8 | I16 | U16 | I32 | U32 | I64 | U64, 2) => Some("a mask"),
            (I16 | U16 | I32 | U32 | I64 | U64, 1) => Some("lengths or offsets"),
            _ => None,
        }
    }
}

/// Finds the tensor of the embeddings.
pub(super) fn embeddings(tensors: &[Listed], options: &FileOptions) -> Result<usize> {
    if let Some(name) = &options.tensor {
        let found = tensors.iter().position(|tensor| tensor.name == *name);
        return found.ok_or_else(|| with_list(&format!("no tensor `{name}` in the file"), tensors));
    }
    if let Some(i) = only(tensors, |tensor| is_embeddings(&tensor.name))? {
        return Ok(i);
    }
    Err(with_list(&format!("no tensor `{EMBEDDINGS}` in the file"), tensors))
}

/// Whether a tensor of this name is the embeddings by default.
pub(super) fn is_embeddings(name: &str) -> bool {
    plain(name).strip_suffix('s').unwrap_or(&plain(name)) == "embedding"
}

fn only(tensors: &[Listed], is_it: impl Fn(&Listed) -> bool) -> Result<Option<usize>> {
    let mut found = (0..tensors.len()).filter(|&i| is_it(&tensors[i]));
    let first = found.next();
    if let (Some(a), Some(b)) = (first, found.next()) {
        let (a, b) = (&tensors[a].name, &tensors[b].name);
        let error = FileError::new(format!("tensors `{a}` and `{b}` could both be the embeddings"));
        return Err(error.advise(Advice::FirstTensor { name: a.clone() }));
    }
    Ok(first)
}

/// An error that lists the tensors of a file and what they look like, with advice on how to choose
/// one.
pub(super) fn with_list(what: &str, tensors: &[Listed]) -> FileError {
    if tensors.is_empty() {
        return FileError::new(format!("{what}; it has no tensors"));
    }
    let lines = tensors.iter().take(LISTED).map(|tensor| {
        let Listed { name, dtype, shape } = tensor;
        let dtype = dtype.map_or("no numbers".to_string(), |dtype| format!("{dtype:?}"));
        let looks = tensor.looks_like().map(|what| format!(" (could be {what})"));
        format!("`{name}` {dtype} {shape:?}{}", looks.unwrap_or_default())
    });
    let mut text = format!("{what}; it has {}", lines.collect::<Vec<_>>().join(", "));
    if tensors.len() > LISTED {
        text += &format!(" and {} more", tensors.len() - LISTED);
    }
    let mut candidates = tensors.iter().filter(|tensor| tensor.looks_like() == Some("embeddings"));
    match candidates.next() {
        Some(first) => {
            let (name, has_others) = (first.name.clone(), candidates.next().is_some());
            FileError::new(text).advise(Advice::Tensor { name, has_others })
        }
        None => FileError::new(text),
    }
}

/// Lists the tensors beside the embeddings that say where items are, with their roles, and those
/// that could; not those of names in `known`.
pub(super) fn beside(
    tensors: &[Listed],
    embeddings: usize,
    known: &[&str],
    options: &FileOptions,
) -> Vec<(usize, Option<Role>)> {
    let tensor = &tensors[embeddings].name;
    let of_another = |i: usize| {
        let others = tensors.iter().enumerate().filter(|&(j, _)| j != embeddings && j != i);
        let mut names = others.map(|(_, other)| other.name.as_str());
        Role::of(&tensors[i].name).is_none()
            && names.any(|name| Role::beside(&tensors[i].name, name).is_some())
    };
    let is_beside = |&i: &usize| {
        let name = &tensors[i].name;
        i != embeddings && !known.contains(&&**name) && !options.ignored.contains(name)
    };
    let roles = (0..tensors.len()).filter(is_beside).filter_map(|i| {
        let name = &tensors[i].name;
        let role = Role::beside(name, tensor);
        // A mask of other embeddings is none of these, and neither are ids.
        let is_foreign = role.is_none() && (is_ids(name) || of_another(i));
        (!is_foreign).then_some((i, role))
    });
    roles.collect()
}

/// Whether a name is one of ids: `ids`, `doc_id`, `docIds`, `qids`.
fn is_ids(name: &str) -> bool {
    let word = name.rsplit(|c: char| !c.is_alphanumeric()).next().unwrap_or(name);
    let word = word.rfind("Id").map_or(word, |start| &word[start..]).to_lowercase();
    let word = word.strip_suffix('s').unwrap_or(&word);
    ["id", "docid", "qid", "pid", "did"].contains(&word)
}

/// Refuses the name of a tensor for a file whose array has none.
pub(super) fn check_nameless(options: &FileOptions) -> Result<()> {
    if options.tensor.is_none() {
        return Ok(());
    }
    Err(FileError::new("the file has one array without a name").advise(Advice::NoTensor))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(names: &[&str]) -> Vec<Listed> {
        let tensor = |name: &&str| Listed {
            name: (*name).into(),
            dtype: Some(Dtype::F32),
            shape: vec![2, 3, 4],
        };
        names.iter().map(tensor).collect()
    }

    #[test]
    fn embeddings_are_found_by_one_name() {
        let options = FileOptions::default();
        let find = |names: &[&str]| embeddings(&listed(names), &options);
        assert_eq!(find(&["a", "embeddings"]).unwrap(), 1);
        assert_eq!(find(&["Embedding"]).unwrap(), 0);
        assert!(find(&["embeddings", "Embeddings"]).is_err());
        assert!(find(&["doc_embeddings"]).is_err());
        let error = find(&[]).unwrap_err().to_string();
        assert!(error.contains("no tensors"), "{error}");
    }

    #[test]
    fn ids_are_words() {
        for name in ["ids", "id", "doc_ids", "input_ids", "docIds", "documentId", "qids", "x.IDS"] {
            assert!(is_ids(name), "{name}");
        }
        for name in ["valid", "kids", "ids_len", "n", "", "Idle"] {
            assert!(!is_ids(name), "{name}");
        }
    }

    #[test]
    fn tensors_are_what_their_names_say() {
        let options = FileOptions::default().ignore("norms");
        let tensors =
            listed(&["docs", "queries", "queries_mask", "docs.Lengths", "doc_ids", "norms", "n"]);
        let found = beside(&tensors, 0, &["queries"], &options);
        assert_eq!(found, [(3, Some(Role::Lengths)), (6, None)]);
        let found = beside(&tensors, 1, &[], &options);
        assert_eq!(found, [(0, None), (2, Some(Role::Mask)), (6, None)]);
    }
}
