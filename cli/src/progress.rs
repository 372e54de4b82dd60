//! Shows progress bars on a terminal.

use std::fmt::Write;
use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};

use crate::interrupt;

/// How often bars are refreshed.
const TICK: Duration = Duration::from_millis(100);

/// Makes a bar on stderr where that is a terminal; elsewhere a hidden one.
pub(crate) fn progress_bar(n: usize, of: &'static str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template = "{spinner} {wide_bar} {human_pos}/{human_len} {msg}, {time}";
    let style = ProgressStyle::with_template(template);
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar()).with_key("time", time);
    shown(ProgressBar::new(n as u64).with_style(style).with_message(of))
}

fn time(state: &ProgressState, out: &mut dyn Write) {
    // A bar that cannot be written is no reason to fail.
    let _ = out.write_str(&time_text(state.pos(), state.elapsed(), state.eta()));
}

/// Formats the remaining time, or, before anything is done, the time so far.
fn time_text(n_done: u64, elapsed: Duration, eta: Duration) -> String {
    match n_done {
        0 => format!("{:#} so far", HumanDuration(elapsed)),
        _ => format!("{:#} left", HumanDuration(eta)),
    }
}

/// As [`progress_bar`], for work that does not say how far it is.
pub(crate) fn progress_spinner(doing: &'static str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {msg}, {elapsed}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner());
    shown(ProgressBar::new_spinner().with_style(style).with_message(doing))
}

fn shown(bar: ProgressBar) -> ProgressBar {
    interrupt::clears(&bar);
    // At once, and again while a long call runs.
    bar.enable_steady_tick(TICK);
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_said_once_something_is_done() {
        let [long, none] = [Duration::from_secs(75), Duration::ZERO];
        assert_eq!(time_text(0, long, none), "75s so far");
        assert_eq!(time_text(1, long, Duration::from_secs(9)), "9s left");
    }
}
