//! Cleans up when a run is interrupted: clears its bar, removes its unfinished files, and ends
//! by the signal, so that a shell sees the usual exit code (130 for Ctrl-C).

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use indicatif::{ProgressBar, WeakProgressBar};

/// Names of this run's unfinished files.
static UNFINISHED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// The bar on the terminal.
static BAR: Mutex<Option<WeakProgressBar>> = Mutex::new(None);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A set of names and a bar have no state in which they cannot be used.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Clears this bar, too, when the run is interrupted. There is one at a time.
pub(crate) fn clears(bar: &ProgressBar) {
    *locked(&BAR) = Some(bar.downgrade());
}

/// Keeps a signal from ending the run while `work` runs: it waits until then. For a name that is
/// there for a moment only.
#[cfg(target_os = "linux")]
pub(crate) fn held_off<T>(work: impl FnOnce() -> T) -> T {
    let _names = locked(&UNFINISHED);
    work()
}

/// The name of an unfinished file: removed when the run is interrupted, and when this is dropped.
#[derive(Debug)]
pub(crate) struct Unfinished {
    path: PathBuf,
}

impl Unfinished {
    /// Creates a file with this name. No signal comes between the two.
    pub(crate) fn create(
        path: PathBuf,
        create: impl FnOnce(&Path) -> io::Result<File>,
    ) -> io::Result<(Unfinished, File)> {
        let mut names = locked(&UNFINISHED);
        let file = create(&path)?;
        names.insert(path.clone());
        Ok((Unfinished { path }, file))
    }

    /// Takes charge of a file that is there.
    pub(crate) fn of(path: PathBuf) -> Unfinished {
        locked(&UNFINISHED).insert(path.clone());
        Unfinished { path }
    }

    /// Gives the finished file its own name, in place of what has it now.
    pub(crate) fn rename(self, to: &Path) -> io::Result<()> {
        let mut names = locked(&UNFINISHED);
        std::fs::rename(&self.path, to)?;
        names.remove(&self.path);
        drop(names);
        // The file is published, so it must not be removed on drop.
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let mut names = locked(&UNFINISHED);
        // If this fails, too, the next run in the folder removes the file.
        let _ = std::fs::remove_file(&self.path);
        names.remove(&self.path);
    }
}

/// Makes SIGINT, SIGTERM and SIGHUP clean up first. Those that were ignored when the program began
/// stay ignored, as `nohup` and shells want it. Where this cannot be set up they end the run as
/// usual, and the next run removes unfinished files.
pub fn watch() {
    #[cfg(unix)]
    unix::watch();
}

/// Clears the bar and removes unfinished files. No file can be published after that: the lock is
/// kept.
#[cfg(unix)]
fn clean_up() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    if let Some(bar) = locked(&BAR).as_ref().and_then(WeakProgressBar::upgrade) {
        bar.finish_and_clear();
    }
    let names = locked(&UNFINISHED);
    for name in names.iter() {
        let _ = std::fs::remove_file(name);
    }
    names
}

#[cfg(unix)]
mod unix {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::thread;

    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;
    use signal_hook::{flag, low_level};

    /// The thread waits for signals and removes files: it needs little.
    const STACK_BYTES: usize = 128 << 10;

    pub(super) fn watch() {
        let (ready, is_ready) = mpsc::channel();
        // Give the thread a stack size of its own, as RUST_MIN_STACK may ask for any. Handlers are
        // set in the thread, which answers the signals.
        let thread = thread::Builder::new().name("signals".into()).stack_size(STACK_BYTES);
        let spawned = thread.spawn(move || {
            let signals = set_handlers();
            let _ = ready.send(());
            if let Ok((mut signals, is_second)) = signals {
                signals.forever().for_each(|signal| end(signal, &is_second));
            }
        });
        if spawned.is_ok() {
            let _ = is_ready.recv();
        }
    }

    fn set_handlers() -> std::io::Result<(Signals, Arc<AtomicBool>)> {
        let signals: Vec<i32> =
            [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&signal| !is_ignored(signal)).collect();
        let is_second = Arc::new(AtomicBool::new(false));
        for &signal in &signals {
            // A second one ends the run at once, should the first hang on a file system.
            flag::register_conditional_default(signal, is_second.clone())?;
        }
        Ok((Signals::new(signals)?, is_second))
    }

    fn end(signal: i32, is_second: &AtomicBool) {
        is_second.store(true, Ordering::SeqCst);
        let _names = super::clean_up();
        let _ = low_level::emulate_default_handler(signal);
    }

    /// Whether the program was started with this signal ignored. Only Linux reports it without
    /// `unsafe`; elsewhere SIGHUP, the one that `nohup` ignores, keeps its default.
    fn is_ignored(signal: i32) -> bool {
        if cfg!(not(target_os = "linux")) {
            return signal == SIGHUP;
        }
        let Ok(status) = std::fs::read_to_string("/proc/self/status") else {
            return signal == SIGHUP;
        };
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        mask.map_or(signal == SIGHUP, |mask| mask >> (signal - 1) & 1 == 1)
    }
}
