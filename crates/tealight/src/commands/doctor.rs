//! `tealight doctor CONFIG`: checks a configuration before training.

use std::path::Path;

use anyhow::{Result, bail};
use candle_core::Device;
use tealight_train::Session;
use tealight_train::task::table::thousands;
use tealight_train::task::{RegisteredTask, Task, TaskVisitor};
use tealight_train::training::doctor::{self, Finding};

use crate::args::train::Doctor;
use crate::runs::config::LoadedConfig;
use crate::runs::load::with_task;
use crate::runs::preflight;
use crate::system::memory;
use crate::terminal::failure::at_its_place;
use crate::terminal::numbers::format_bytes;
use crate::terminal::output::print;

pub(crate) fn run(args: &Doctor) -> Result<()> {
    let device = args.device.open()?;
    let loaded = LoadedConfig::read(&args.config.path, &args.config.overrides)?;
    let examination = Examination { args, loaded: &loaded, device: &device };
    with_task(&loaded, &device, None, examination)
}

struct Examination<'a> {
    args: &'a Doctor,
    loaded: &'a LoadedConfig,
    device: &'a Device,
}

impl TaskVisitor for Examination<'_> {
    type Output = Result<()>;

    fn visit<T: RegisteredTask>(self, task: T) -> Result<()> {
        let Self { args, loaded, device } = self;
        let LoadedConfig { source, config, init_model } = loaded;
        let at_its_place = |error| at_its_place(error, source);
        let init_model = init_model.as_deref();
        let mut session = loaded.session(task, device)?;
        if let Some(model) = init_model {
            session.begin_with(model).map_err(at_its_place)?;
        }
        report(&model(&session))?;
        let resources = resources(&session)?;
        report(&resources)?;
        if !resources.is_fine {
            bail!("not enough memory or disk space: the other checks were skipped");
        }
        session.check_metric().map_err(at_its_place)?;
        let checks: [&dyn Fn() -> tealight_train::Result<Finding>; 3] = [
            &|| doctor::gradients(&session),
            &|| doctor::masks(config, session.task.seq_len()),
            &|| doctor::one_batch(config, &*session.task, init_model, args.steps, device),
        ];
        let mut n_bad = 0;
        for check in checks {
            let finding = check().map_err(at_its_place)?;
            report(&finding)?;
            n_bad += usize::from(!finding.is_fine);
        }
        if n_bad > 0 {
            bail!("{n_bad} of {} checks failed", checks.len());
        }
        Ok(())
    }
}

/// Prints the finding of a check.
fn report(Finding { check, is_fine, text }: &Finding) -> Result<()> {
    let sign = if *is_fine { "ok  " } else { "BAD " };
    print(&format!("{sign} {check:<9}  {text}\n"))
}

fn model<T: Task>(session: &Session<T>) -> Finding {
    let n = thousands(session.params.n_parameters() as u64);
    let text = format!("{n} parameters, sequences of {}", session.task.seq_len());
    Finding { check: "model", is_fine: true, text }
}

/// Memory and disk space.
fn resources<T: Task>(session: &Session<T>) -> Result<Finding> {
    let of_memory = preflight::memory_shortage(session, &session.ranks)?;
    let shortage = match of_memory {
        None => preflight::disk_shortage(session, Path::new("."), None)?,
        of_memory => of_memory,
    };
    let is_fine = shortage.is_none();
    let enough = || {
        let available = memory::available();
        format!(
            "training needs about {} of {} available memory; a checkpoint takes {}",
            format_bytes(session.memory_needed(1)),
            available.map_or_else(|| "an unknown amount".to_owned(), |n| format_bytes(n as f64)),
            format_bytes(session.checkpoint_bytes() as f64)
        )
    };
    let text = shortage.map_or_else(enough, |shortage| shortage.message);
    Ok(Finding { check: "resources", is_fine, text })
}
