//! The command line as clap gets it, with notes that clap's help lacks.

use std::collections::{BTreeMap, BTreeSet};

use clap::{Command, CommandFactory};

use crate::args::Args;

/// Makes the command. The help of every option lists the others it cannot be used with.
pub fn command() -> Command {
    // Only a built command knows what an option cannot be used with, and its options cannot be
    // changed any more.
    let mut built = Args::command();
    built.build();
    let subcommands: Vec<&Command> = built.get_subcommands().collect();
    subcommands.into_iter().fold(Args::command(), |command, sub| match conflicts(sub) {
        conflicts if conflicts.is_empty() => command,
        conflicts => {
            command.mut_subcommand(sub.get_name(), |command| with_notes(command, conflicts))
        }
    })
}

/// A command's options with a note of the others that they cannot be used with.
fn with_notes(command: Command, conflicts: BTreeMap<String, BTreeSet<String>>) -> Command {
    conflicts.into_iter().fold(command, |command, (id, others)| {
        command.mut_arg(id, |arg| {
            let others = Vec::from_iter(others).join(", ");
            let note = |help: String| format!("{help} Cannot be used with {others}.");
            let (help, long) = (arg.get_help().cloned(), arg.get_long_help().cloned());
            let ended = |help: String| if help.ends_with('.') { help } else { help + "." };
            let arg = match help {
                Some(help) => arg.help(note(ended(help.to_string()))),
                None => arg,
            };
            match long {
                Some(long) => arg.long_help(note(ended(long.to_string()))),
                None => arg,
            }
        })
    })
}

/// For each option the options that it conflicts with, whichever of the two states it.
fn conflicts(command: &Command) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for arg in command.get_arguments() {
        for other in command.get_arg_conflicts_with(arg) {
            for (one, other) in [(arg, other), (other, arg)] {
                if let Some(long) = other.get_long().filter(|_| !other.is_hide_set()) {
                    found.entry(one.get_id().to_string()).or_default().insert(format!("--{long}"));
                }
            }
        }
    }
    found
}
