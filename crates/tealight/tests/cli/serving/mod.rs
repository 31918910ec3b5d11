//! `tealight serve`, by HTTP.

mod answering;
mod budgeting;
mod client;
mod crowding;
mod following;
mod guarding;
mod playing;
mod refusing;
