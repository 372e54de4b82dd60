//! Options of a call as text: `name=value` words, separated by commas.

use maxsim::ScoreOptions;
use maxsim::training::BackwardStrategy;

/// Reads options. Text rather than a struct, so that a new option changes no signature.
pub(crate) fn parse(text: &str) -> Result<ScoreOptions, String> {
    let mut options = ScoreOptions::default();
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let (name, value) =
            word.split_once('=').ok_or_else(|| format!("option {word}: expected name=value"))?;
        match name {
            "winners" => options.winners = flag(name, value)?,
            "token_scores" => options.token_scores = flag(name, value)?,
            "normalize" => options.normalize = flag(name, value)?,
            "angular" => options = options.angular(flag(name, value)?),
            "tf32" => options.allow_tf32 = flag(name, value)?,
            "kernel" => options.kernel = Some(value.to_string()),
            "document_splits" => {
                let n = value.parse().map_err(|_| format!("option {word}: expected a number"))?;
                options.document_splits = Some(n);
            }
            _ => {
                return Err(format!(
                    "option {name}: expected winners, token_scores, normalize, angular, tf32, \
                     kernel or document_splits"
                ));
            }
        }
    }
    Ok(options)
}

/// How gradients are computed.
pub(crate) fn strategy(text: &str) -> Result<BackwardStrategy, String> {
    match text {
        "owner" => Ok(BackwardStrategy::Deterministic),
        "atomic" => Ok(BackwardStrategy::Atomic),
        "recompute" => Ok(BackwardStrategy::Recompute),
        _ => Err(format!("strategy {text}: expected owner, atomic or recompute")),
    }
}

fn flag(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(format!("option {name}={value}: expected 0 or 1")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategies_have_names() {
        assert_eq!(strategy("owner"), Ok(BackwardStrategy::Deterministic));
        assert_eq!(strategy("atomic"), Ok(BackwardStrategy::Atomic));
        assert!(strategy("fast").unwrap_err().contains("fast"));
    }

    #[test]
    fn words_become_options_and_others_are_refused_by_name() {
        assert_eq!(parse("").unwrap(), ScoreOptions::default());
        let options = parse("winners=1, kernel=some_row,token_scores=0,document_splits=3").unwrap();
        assert_eq!(options.document_splits, Some(3));
        assert_eq!(options.kernel.as_deref(), Some("some_row"));
        assert_eq!((options.winners, options.token_scores), (true, false));
        for (text, said) in [
            ("winners=yes", "winners=yes"),
            ("speed=1", "speed"),
            ("x", "x"),
            ("document_splits=-1", "document_splits=-1"),
        ] {
            assert!(parse(text).unwrap_err().contains(said), "{text}");
        }
    }
}
