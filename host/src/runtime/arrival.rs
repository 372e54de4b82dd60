//! When bytes that are copied to a device are there.

/// When bytes that a call copies to a device are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// When the call returns, for any reader.
    Awaited,
    /// Before the later work of the library's streams, and for no other reader: the call does not
    /// wait, unless there are more than a megabyte.
    InOrder,
}
