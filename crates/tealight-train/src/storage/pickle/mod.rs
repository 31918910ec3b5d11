//! Pickles (protocol 2, <https://docs.python.org/3/library/pickletools.html>) as data.
//!
//! ```text
//! bytes → Machine → Pickle { nodes, root }
//! ```
//!
//! A pickle is a program for a machine with a stack and a memo. Python's machine imports the functions that it names,
//! and calls them. This machine has no function to call: a global is a name, a call is a node that holds the name and
//! the arguments, and the reader decides what they mean. It knows the opcodes that `torch.save` writes, and refuses a
//! global that is neither `collections.OrderedDict` nor in the reader's list when it is named, before anything uses it.
//!
//! Nodes lie in one list, so a value that contains itself costs nothing, and no function here is recursive.

mod error;
mod machine;
mod value;

pub(super) use error::PickleError;
pub(super) use machine::{MAX_BYTES, read};
pub(super) use value::{Pickle, Value};
