//! `tealight evaluate RUN`: a run beside the baselines and the limit of what can be known.

use anyhow::Result;
use tealight_train::task::weather::Report;

use super::load::{same_data, trained};
use super::{print, weather};
use crate::args::Evaluate;

pub(crate) fn run(args: &Evaluate) -> Result<()> {
    let (session, directory) = trained(&args.trained)?;
    same_data(&session, &directory)?;
    let report = Report::new(&session.task, &session.twin)?;
    if args.json {
        return print(&format!("{}\n", serde_json::to_string_pretty(&report)?));
    }
    print(&weather::table(&report))
}
