//! The `maxsim` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    maxsim_cli::program::run(std::env::args_os()).into()
}
