//! The page of a run: status, charts, tables, samples and attention in one HTML file that loads nothing.
//!
//! ```text
//! directory ─► RunData::read ─► page(runs, Form::File) ─► RUN/report.html
//!                            └► page(runs, Form::Live) ─► a server ◄── update(directory, cursor), by server-sent events
//! ```
//!
//! Runs and corpora are untrusted. `maud` escapes all text, the scripts set text by `textContent` alone, embedded JSON
//! writes `<` as `\u003c`, files that the run's directory holds are shown as `<img>`, in which no script runs, and the
//! content security policy allows the scripts and styles of the page by their hashes and nothing else.
//!
//! # For a server
//!
//! - [`RunData::read`](read::RunData::read) reads the files of a run, without its weights. [`attention::compute`] adds attention maps.
//! - [`page::page`] with [`Form::Live`](page::Form::Live) gives the page without `<meta>` policy, with a script of the
//!   server at its end. [`page::policy`] is the value of the header `Content-Security-Policy` for the same form; it
//!   allows `connect-src 'self'`.
//! - [`update::update`] gives what has changed in a run, as just read, since a [`Cursor`](read::cursor::Cursor):
//!   status, numbers and lines of `metrics.jsonl`. The page holds the cursor of each run that it was made with:
//!   `tealight.runs[i].cursor`.
//! - In the page, `tealight.update(i, change)` takes such a change for run `i` (counted from 0, in the order of the
//!   page) and updates numbers and charts. The server's script connects the two.
//! - A change whose `structure` differs from that of the page, `tealight.runs[i].structure`, tells that a new page
//!   would have other parts, such as samples or results. `tealight.renew(document)` takes them over from such a page.
//!
//! ```js
//! const source = new EventSource("/events?cursor=" + tealight.runs[0].cursor);
//! source.onmessage = event => tealight.update(0, JSON.parse(event.data));
//! ```
//!
//! A change is this object; `restart` tells that lines were taken back (a roll-back, or a run that was resumed), so
//! that the page forgets its points before it takes the new ones:
//!
//! ```json
//! {"cursor": "120.0", "restart": false, "structure": "9/2048/false/1000/running",
//!  "facts": {"status": "running", "steps": "1,200 of 5,000"},
//!  "clock": {"steps": [1190, 1200], "seconds": [9.1, 9.2], "tokens": [152320, 153600]},
//!  "series": [{"split": "train", "metric": "loss", "steps": [1190, 1200], "values": [2.5, null]}],
//!  "marks": [{"kind": "skipped", "step": 1195}]}
//! ```
//!
//! The texts of `facts` replace those of the elements `[data-fact="0/status"]` and so on, where 0 is the run.
//! `null` stands for a value that is not finite. `tokens` is absent for tasks that do not count them.

pub(crate) mod ablation;
pub(crate) mod attention;
mod charts;
mod checkpoints;
mod groups;
mod mistakes;
mod origin;
mod overview;
pub(crate) mod page;
pub(crate) mod read;
mod results;
mod samples;
mod series;
mod settings;
mod status;
mod structure;
pub(crate) mod text;
pub(crate) mod update;
mod values;
