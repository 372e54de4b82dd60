//! The oracle and the suites that every engine must pass.
