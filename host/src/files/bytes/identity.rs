//! Identifies an open file, and finds out whether it has changed.
//!
//! A file is known by its device, inode, size, and the times of its last changes in nanoseconds
//! (`mtime`, and `ctime`, which users cannot set). Times move in steps: a file that was changed a
//! moment ago may change again within the same step, and nothing would show. So an identity is only
//! relied on where the last change was longer ago than a step when the file was opened. What
//! remains is a file that changes under an unchanged `ctime`: by writes to the device below the
//! file system, by a memory map that wrote to the page before, or on file systems that do not keep
//! the times.

use std::fmt;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// More than a step of file times: kernels take them from a clock of at most 10 ms.
const STEP: Duration = Duration::from_millis(100);

/// More than a step of file times on file systems that keep whole seconds, or two.
const COARSE_STEP: Duration = Duration::from_secs(4);

const NANOS: i128 = 1_000_000_000;

/// A file in one of its states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    mtime: i128,
    ctime: i128,
}

/// As files note it.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Identity { device, inode, size, mtime, ctime } = self;
        write!(f, "device {device} inode {inode} size {size} mtime {mtime} ctime {ctime}")
    }
}

impl Identity {
    #[cfg(unix)]
    fn of(file: &File) -> Option<Identity> {
        use std::os::unix::fs::MetadataExt;
        let found = file.metadata().ok()?;
        let nanos = |seconds: i64, nanos: i64| i128::from(seconds) * NANOS + i128::from(nanos);
        Some(Identity {
            device: found.dev(),
            inode: found.ino(),
            size: found.size(),
            mtime: nanos(found.mtime(), found.mtime_nsec()),
            ctime: nanos(found.ctime(), found.ctime_nsec()),
        })
    }

    /// Other systems have no such times to rely on.
    #[cfg(not(unix))]
    fn of(_: &File) -> Option<Identity> {
        None
    }

    /// How long the last change has to be over at `now`, in nanoseconds, before another one shows.
    fn unsettled(&self, now: SystemTime) -> i128 {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let step = if self.ctime % NANOS == 0 { COARSE_STEP } else { STEP };
        step.as_nanos() as i128 - (now.as_nanos() as i128 - self.ctime)
    }
}

/// Kinds of changes of an open file, as its size and times show them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A change of its size, or of the time of its last write.
    Content,
    /// A change of any time: the writer may have set the other one back.
    Any,
}

/// Identity of an open file, and whether a later change would show.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opened {
    found: Identity,
    is_settled: bool,
}

impl Opened {
    pub fn of(file: &File) -> Option<Opened> {
        let found = Identity::of(file)?;
        Some(Opened { found, is_settled: found.unsettled(SystemTime::now()) < 0 })
    }

    /// Whether the file is as it was, as far as its times show.
    pub fn is_still(&self, file: &File) -> bool {
        Identity::of(file) == Some(self.found)
    }

    /// As [`Opened::is_still`], but for what renames, links and permissions change too.
    pub fn has_same_content(&self, file: &File) -> bool {
        Identity::of(file)
            .is_some_and(|now| Identity { ctime: self.found.ctime, ..now } == self.found)
    }

    pub fn identity(&self) -> Option<Identity> {
        self.is_settled.then_some(self.found)
    }
}

/// Waits for as long as a file that changed a moment ago may change again without that showing: at
/// most a tenth of a second. Called before a file is opened, it makes sure that
/// [`check_unchanged`](crate::files::TokenFile::check_unchanged) finds changes and that the file
/// has an [`identity`](crate::files::TokenFile::identity). A file that cannot be opened fails where
/// it is opened next.
pub fn settle(path: impl AsRef<Path>) {
    let path = path.as_ref();
    let is_file = std::fs::metadata(path).is_ok_and(|found| found.is_file());
    let found = is_file.then(|| File::open(path).ok()).flatten();
    let Some(found) = found.as_ref().and_then(Identity::of) else { return };
    let left = found.unsettled(SystemTime::now());
    if (0..=STEP.as_nanos() as i128).contains(&left) {
        std::thread::sleep(Duration::from_nanos(left as u64 + 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_a_moment_ago_are_not_settled() {
        let at = |ctime| Identity { device: 1, inode: 2, size: 3, mtime: 0, ctime };
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let before = |age: i128| at(1000 * NANOS - age).unsettled(now);
        assert!(before(1) > 0 && before(99_000_000) > 0 && before(100_000_001) < 0);
        // Whole seconds may be steps of whole seconds; a change in the future is none that is over.
        assert!(before(NANOS) > 0 && before(5 * NANOS) < 0 && before(-5) > 0);
    }
}
