//! The `maxsim` command.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use maxsim_cli::args::Args;
use maxsim_cli::texts::printable;

/// Every failure, as for wrong usage.
const FAILURE: u8 = 2;

fn main() -> ExitCode {
    match maxsim_cli::run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Messages quote files: nothing in them may steer the terminal.
            let line = printable(&format!("error: {error:#}"));
            // A closed stderr must not turn the error into a panic, as `eprintln!` would.
            let _ = writeln!(std::io::stderr(), "{line}");
            ExitCode::from(FAILURE)
        }
    }
}
