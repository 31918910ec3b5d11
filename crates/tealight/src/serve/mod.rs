//! `tealight serve`: pages of runs, a playground and an API, over HTTP.
//!
//! ```text
//! connection ─► http/security ─► api/hf, api/openai, api/play ─► models/worker ─► forward pass
//!               (Host, Origin,   pages, live                     (a thread per model: takes all that
//!                token, sizes)                                    wait and answers them together)
//! ```
//!
//! One thread accepts, reads and writes; it reads no disk and computes nothing long (`http/body` has the rule). Names in a
//! request are looked up in a table made by searching directories, so no path comes from a request. Runs are read only,
//! and the process that trains one is not touched.

mod api;
mod app;
mod counters;
mod fault;
mod http;
mod limits;
mod live;
mod models;
mod pages;
pub(crate) mod rehearsal;
mod routes;
mod start;

pub(crate) use start::run;
