//! `tealight serve`, by HTTP.

mod answering;
mod client;
mod crowding;
mod following;
mod refusing;
