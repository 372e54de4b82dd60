//! Bars on the terminal, and nothing elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::interrupt;

/// How often bars are drawn again.
const TICK: Duration = Duration::from_millis(100);

/// A bar on stderr where that is a terminal, and nothing elsewhere.
pub(crate) fn progress_bar(n: usize, of: &'static str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style =
        ProgressStyle::with_template("{wide_bar} {human_pos}/{human_len} {msg}, {eta} left");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    shown(ProgressBar::new(n as u64).with_style(style).with_message(of))
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
