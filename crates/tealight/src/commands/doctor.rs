//! `tealight doctor CONFIG`: what can be known of a run before it begins.

use anyhow::{Result, bail};
use candle_core::Device;
use tealight_train::Session;
use tealight_train::config::{ConfigSource, RunConfig};
use tealight_train::doctor::{self, Finding};

use super::load::{ForAnyTask, Given, with_task};
use super::presented::Presented;
use super::print;
use crate::args::Doctor;
use crate::failure::at_its_place;
use crate::memory;
use crate::room::{self, size};
use crate::table::thousands;

pub(crate) fn run(args: &Doctor) -> Result<()> {
    let device = args.device.open()?;
    let Given { source, config, .. } = Given::read(&args.config, &args.overrides)?;
    let examination = Examination { args, source: &source, config: &config, device: &device };
    with_task(&config, &source, &device, None, examination)
}

struct Examination<'a> {
    args: &'a Doctor,
    source: &'a ConfigSource,
    config: &'a RunConfig,
    device: &'a Device,
}

impl ForAnyTask for Examination<'_> {
    fn run<T: Presented>(self, task: T) -> Result<()> {
        let Self { args, source, config, device } = self;
        let at_its_place = |error| at_its_place(error, source);
        let session = Session::new(config, task, device).map_err(at_its_place)?;
        let findings = [
            model(&session),
            self.room(&session),
            doctor::gradients(&session).map_err(at_its_place)?,
            doctor::masks(config, session.task.seq_len()).map_err(at_its_place)?,
            doctor::one_batch(config, &session.task, args.steps, device).map_err(at_its_place)?,
        ];
        for Finding { check, is_fine, text } in &findings {
            let sign = if *is_fine { "ok  " } else { "BAD " };
            print(&format!("{sign} {check:<9}  {text}\n"))?;
        }
        match findings.iter().filter(|finding| !finding.is_fine).count() {
            0 => Ok(()),
            n => bail!("{n} of {} checks found something wrong", findings.len()),
        }
    }
}

fn model<T: Presented>(session: &Session<T>) -> Finding {
    let n = thousands(session.params.n_parameters() as u64);
    let text = format!("{n} parameters, sequences of {}", session.task.seq_len());
    Finding { check: "model", is_fine: true, text }
}

impl Examination<'_> {
    fn room<T: Presented>(&self, session: &Session<T>) -> Finding {
        let here = std::path::Path::new(".");
        let refusal = room::check(session, self.source, here, None).err();
        let text = match &refusal {
            Some(error) => format!("{error:#}").lines().next().unwrap_or_default().to_owned(),
            None => format!(
                "training needs about {} of {}; a checkpoint takes {}",
                size(session.memory_needed()),
                memory::available()
                    .map_or_else(|| "an unknown amount".to_owned(), |n| size(n as f64)),
                size(session.checkpoint_bytes() as f64)
            ),
        };
        Finding { check: "room", is_fine: refusal.is_none(), text }
    }
}
