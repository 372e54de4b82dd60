//! The benchmark's program, for what needs a process of its own.

use std::error::Error;
use std::io::Write as _;

const USAGE: &str = "\
usage: maxsim-bench <command>

  cold-start DEVICE  the time from the opened device (cpu or cuda:N) to the first score, as JSON";

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut out = std::io::stdout().lock();
    match args[..] {
        ["cold-start", device] => {
            writeln!(out, "{}", maxsim_bench::cold_start::run(device)?)?;
            Ok(())
        }
        _ => {
            eprintln!("{USAGE}");
            std::process::exit(2)
        }
    }
}
