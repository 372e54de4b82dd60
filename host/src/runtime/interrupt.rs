//! Ends calls before they are done.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

thread_local! {
    /// The interrupt that this thread's calls heed.
    static CURRENT: RefCell<Option<Interrupt>> = const { RefCell::new(None) };
}

/// A flag by which a thread asks calls to end, of the CPU engine and searches over documents that
/// pass by. Clones are the same flag.
///
/// For programs whose user waits for a call that may take minutes, and may press Ctrl-C.
///
/// ```
/// use maxsim::{Device, Error, Interrupt, Pairing, Tokens};
///
/// let tokens = Tokens::padded(&[1.0f32, 0.0], 1, 1, 2)?;
/// let score = || Device::cpu().score(&tokens, &tokens, &Pairing::cross());
/// let interrupt = Interrupt::default();
/// assert!(interrupt.heeded_by(score).is_ok());
/// interrupt.raise(); // usually from another thread, while the call runs
/// assert!(matches!(interrupt.heeded_by(score), Err(Error::Interrupted)));
/// assert!(score().is_ok());
/// # Ok::<(), maxsim::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

/// Restores [`CURRENT`] when dropped, also when a call panics.
struct Restored(Option<Interrupt>);

impl Drop for Restored {
    fn drop(&mut self) {
        CURRENT.replace(self.0.take());
    }
}

impl Interrupt {
    /// Asks the calls to end: each gives [`Error::Interrupted`] as soon as its threads have
    /// finished what they are at, which takes milliseconds.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Runs `calls`, in which scores and gradients of the CPU engine that this thread asks for
    /// end early once the flag is raised, and
    /// [searches over documents that pass by](crate::Device::search_stream) and
    /// [XTR scores](crate::Device::xtr) of every device. Other calls of other devices do not heed
    /// it.
    pub fn heeded_by<R>(&self, calls: impl FnOnce() -> R) -> R {
        let _restored = Restored(CURRENT.replace(Some(self.clone())));
        calls()
    }

    /// The flag that a call of this thread heeds.
    pub(crate) fn current() -> Heeded {
        Heeded(CURRENT.with_borrow(Clone::clone))
    }
}

/// What a call asks, from whichever of its threads, before it does more.
#[derive(Clone, Debug)]
pub(crate) struct Heeded(Option<Interrupt>);

impl Heeded {
    /// Runs calls of another thread that heed the same flag.
    pub(crate) fn heeded_by<R>(&self, calls: impl FnOnce() -> R) -> R {
        match &self.0 {
            Some(interrupt) => interrupt.heeded_by(calls),
            None => calls(),
        }
    }

    /// An error where the call is to end.
    pub(crate) fn check(&self) -> Result<()> {
        match &self.0 {
            Some(Interrupt(flag)) if flag.load(Ordering::Relaxed) => Err(Error::Interrupted),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_holds_for_the_calls_within_and_no_longer() {
        let [outer, inner] = [Interrupt::default(), Interrupt::default()];
        inner.raise();
        outer.heeded_by(|| {
            assert!(inner.heeded_by(|| Interrupt::current().check()).is_err());
            let panicked = std::panic::catch_unwind(|| inner.heeded_by(|| panic!("as meant")));
            assert!(panicked.is_err());
            assert!(Interrupt::current().check().is_ok());
            outer.clone().raise();
            assert!(Interrupt::current().check().is_err());
        });
        assert!(Interrupt::current().check().is_ok());
    }
}
