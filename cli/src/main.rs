//! The `maxsim` command.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use maxsim_cli::args::Args;
use maxsim_cli::texts::printable;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) if is_help(&error) => error.exit(),
        Err(error) => return failure(&error.to_string()),
    };
    maxsim_cli::interrupt::watch();
    // Otherwise the first call starts them, which panics where it cannot.
    if let Err(error) = rayon::ThreadPoolBuilder::new().build_global() {
        return failure(&format!(
            "error: threads cannot be started: {error}; with RAYON_NUM_THREADS=1 one is enough"
        ));
    }
    match maxsim_cli::run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure(&format!("error: {error:#}")),
    }
}

fn is_help(error: &clap::Error) -> bool {
    let on_nothing = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    on_nothing || !error.use_stderr()
}

/// One line on stderr and exit code 2, for wrong usage and for everything else.
fn failure(message: &str) -> ExitCode {
    // Messages quote files and arguments: nothing in them may steer the terminal. A closed
    // stderr must not turn the error into a panic, as `eprintln!` would.
    let _ = writeln!(std::io::stderr(), "{}", printable(message));
    ExitCode::from(2)
}
