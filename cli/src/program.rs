//! The whole command: arguments in, messages on stderr, an exit code out.

use std::ffi::OsString;
use std::io::Write;

use clap::FromArgMatches;
use clap::error::ErrorKind;

use crate::args::Args;
use crate::texts::{chain, printable};
use crate::{interrupt, threads, usage};

/// Runs the command with its arguments, the name of the program first, and gives its exit code. To
/// be called once in a process: it sets up threads and answers signals.
pub fn run(argv: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> u8 {
    let matches = usage::command().try_get_matches_from(argv);
    let args = match matches.and_then(|matches| Args::from_arg_matches(&matches)) {
        Ok(args) => args,
        Err(error) if is_help(&error) => {
            // As `clap::Error::exit`: a closed pipe is no failure.
            let _ = error.print();
            return error.exit_code() as u8;
        }
        Err(error) => return wrong_usage(&error),
    };
    interrupt::watch();
    match threads::start() {
        Ok(None) => {}
        Ok(Some(warning)) => say(&printable(&format!("warning: {warning}"))),
        Err(error) => return failure(&format!("error: {error}")),
    }
    match crate::run(&args) {
        Ok(()) => 0,
        Err(error) => failure(&format!("error: {}", chain(&error))),
    }
}

fn is_help(error: &clap::Error) -> bool {
    let on_nothing = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    on_nothing || !error.use_stderr()
}

/// Prints clap's message, in its lines; exit code 2.
fn wrong_usage(error: &clap::Error) -> u8 {
    let message = error.to_string();
    // Arguments are quoted in it; spaces at the beginning of lines are clap's.
    for line in message.trim_end().lines() {
        let words = line.trim_start_matches(' ');
        say(&format!("{:1$}{2}", "", line.len() - words.len(), printable(words)));
    }
    2
}

/// One line on stderr and exit code 2.
fn failure(message: &str) -> u8 {
    // Messages quote files and arguments: escape what could steer the terminal.
    say(&printable(message));
    2
}

/// A line on stderr.
fn say(line: &str) {
    // A closed stderr must not turn an error into a panic, as `eprintln!` would.
    let _ = writeln!(std::io::stderr(), "{line}");
}
