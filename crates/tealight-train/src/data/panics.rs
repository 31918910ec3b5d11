//! Panics of libraries on invalid files, as errors.

use std::cell::Cell;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::panic_message;

thread_local! {
    /// How many calls of [`caught`] this thread is in.
    static CATCHING: Cell<usize> = const { Cell::new(0) };
}

/// Whether this thread calls a library now whose panics become errors: a panic hook need not print their message.
pub fn are_caught() -> bool {
    CATCHING.get() > 0
}

/// The result of `work`, a call of `library`, whose panics become errors, too.
///
/// # Errors
/// The message of the library's error or panic.
pub(super) fn caught<T, E: Display>(
    library: &str,
    work: impl FnOnce() -> Result<T, E>,
) -> Result<T, String> {
    CATCHING.set(CATCHING.get() + 1);
    let result = catch_unwind(AssertUnwindSafe(work));
    CATCHING.set(CATCHING.get() - 1);
    match result {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(panic) => {
            let message = panic_message(&*panic).map_or(String::new(), |text| format!(": {text}"));
            Err(format!("it makes the {library} library panic{message}"))
        }
    }
}
