//! A caller's closure that takes results, shared by the threads of a call.

use std::result::Result;
use std::sync::Mutex;

use crate::error::Error;
use crate::runtime::swap::{into_inner, lock};

/// What takes results, and the error that it ended the call with.
pub(super) struct Taking<F, E>(Mutex<(F, Option<E>)>);

impl<F, E> Taking<F, E> {
    pub fn new(take: F) -> Taking<F, E> {
        Taking(Mutex::new((take, None)))
    }

    /// Has it take a result, one thread at a time. Once it has failed, or panicked, it gets no
    /// more: a thread that waited for it ends as well.
    ///
    /// # Errors
    /// [`Error::Interrupted`] where the call is to end.
    pub fn give(&self, give: impl FnOnce(&mut F) -> Result<(), E>) -> Result<(), Error> {
        let has_panicked = self.0.is_poisoned();
        let (take, failed) = &mut *lock(&self.0);
        if failed.is_some() || has_panicked {
            return Err(Error::Interrupted);
        }
        give(take).map_err(|error| {
            *failed = Some(error);
            Error::Interrupted
        })
    }

    /// The result of the call, or the error that it was ended with.
    pub fn end<R>(self, done: Result<R, Error>) -> Result<R, E>
    where
        E: From<Error>,
    {
        match into_inner(self.0).1 {
            Some(error) => Err(error),
            None => Ok(done?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn what_has_ended_a_call_gets_no_more() {
        let mut taken = Vec::new();
        let taking = Taking::new(|n: u32| {
            taken.push(n);
            if n == 2 { Err(Error::Interrupted) } else { Ok(()) }
        });
        assert!(taking.give(|take| take(1)).is_ok());
        for n in [2, 3] {
            assert!(matches!(taking.give(|take| take(n)), Err(Error::Interrupted)));
        }
        assert!(matches!(taking.end(Ok(())), Err(Error::Interrupted)));
        assert_eq!(taken, [1, 2]);

        let taking = Taking::new(|n: u32| -> Result<(), Error> { panic!("{n}") });
        assert!(catch_unwind(AssertUnwindSafe(|| taking.give(|take| take(1)))).is_err());
        assert!(matches!(taking.give(|_| unreachable!()), Err(Error::Interrupted)));
    }
}
