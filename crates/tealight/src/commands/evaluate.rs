//! `tealight evaluate RUN`: a run beside the baselines and the limit of what can be known.

use anyhow::Result;

use super::load::{ForAnyTask, Run, same_data, with_task};
use super::presented::Presented;
use super::print;
use crate::args::Evaluate;

pub(crate) fn run(args: &Evaluate) -> Result<()> {
    let run = Run::open(&args.trained.path, &args.trained.used)?;
    let evaluation = Evaluation { run: &run, json: args.json };
    with_task(&run.config, &run.source, &run.device, Some(&run.directory), evaluation)
}

struct Evaluation<'a> {
    run: &'a Run,
    json: bool,
}

impl ForAnyTask for Evaluation<'_> {
    fn run<T: Presented>(self, task: T) -> Result<()> {
        let session = self.run.load(task)?;
        same_data(&session.task, &self.run.directory)?;
        let report = session.task.report(&session.twin)?;
        if self.json {
            return print(&format!("{}\n", serde_json::to_string_pretty(&report)?));
        }
        print(&T::table(&report))
    }
}
