//! The `maxsim` command.

use std::io::Write;
use std::process::ExitCode;

use clap::FromArgMatches;
use clap::error::ErrorKind;
use maxsim_cli::args::Args;
use maxsim_cli::texts::{chain, printable};
use maxsim_cli::{interrupt, threads, usage};

fn main() -> ExitCode {
    let matches = usage::command().try_get_matches();
    let args = match matches.and_then(|matches| Args::from_arg_matches(&matches)) {
        Ok(args) => args,
        Err(error) if is_help(&error) => error.exit(),
        Err(error) => return wrong_usage(&error),
    };
    interrupt::watch();
    match threads::start() {
        Ok(None) => {}
        Ok(Some(warning)) => say(&printable(&format!("warning: {warning}"))),
        Err(error) => return failure(&format!("error: {error}")),
    }
    match maxsim_cli::run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure(&format!("error: {}", chain(&error))),
    }
}

fn is_help(error: &clap::Error) -> bool {
    let on_nothing = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    on_nothing || !error.use_stderr()
}

/// Prints clap's message, in its lines; exit code 2.
fn wrong_usage(error: &clap::Error) -> ExitCode {
    let message = error.to_string();
    // Arguments are quoted in it; spaces at the beginning of lines are clap's.
    for line in message.trim_end().lines() {
        let words = line.trim_start_matches(' ');
        say(&format!("{:1$}{2}", "", line.len() - words.len(), printable(words)));
    }
    ExitCode::from(2)
}

/// One line on stderr and exit code 2.
fn failure(message: &str) -> ExitCode {
    // Messages quote files and arguments: escape what could steer the terminal.
    say(&printable(message));
    ExitCode::from(2)
}

/// A line on stderr.
fn say(line: &str) {
    // A closed stderr must not turn an error into a panic, as `eprintln!` would.
    let _ = writeln!(std::io::stderr(), "{line}");
}
