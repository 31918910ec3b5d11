//! `tealight doctor CONFIG`: checks a configuration before training.

use std::path::Path;

use anyhow::{Result, bail};
use serde_json::json;
use tealight_train::Session;
use tealight_train::export::foreseen;
use tealight_train::task::table::thousands;
use tealight_train::task::{RegisteredTask, Task};
use tealight_train::training::preflight::{self, Finding};

use crate::args::train::Doctor;
use crate::runs::config::LoadedConfig;
use crate::runs::load::task_of;
use crate::runs::resources;
use crate::system::memory;
use crate::terminal::failure::at_its_place;
use crate::terminal::numbers::format_bytes;
use crate::terminal::output::{print, print_indented_json};

pub(crate) fn run(args: &Doctor) -> Result<()> {
    let device = args.device.open()?;
    let loaded = LoadedConfig::read(&args.config.path, &args.config.overrides)?;
    loaded.on_test_data()?;
    let task = task_of(&loaded, &device, None)?;
    let LoadedConfig { source, config, init_model, .. } = &loaded;
    let at_its_place = |error| at_its_place(error, source);
    let init_model = init_model.as_deref();
    let mut session = loaded.session(task, &device)?;
    if let Some(model) = init_model {
        session.begin_with(model).map_err(at_its_place)?;
    }
    loaded.set_teacher(&mut session)?;
    let mut findings = Findings { printed: !args.json, all: Vec::new() };
    findings.add(model(&session))?;
    findings.add(export(&session))?;
    let resources = resources(&session)?;
    let is_enough = resources.is_fine;
    findings.add(resources)?;
    if !is_enough {
        findings.end()?;
        bail!("not enough memory or disk space: the other checks were skipped");
    }
    session.check_metric().map_err(at_its_place)?;
    let checks: [&dyn Fn() -> tealight_train::Result<Finding>; 3] = [
        &|| preflight::gradients(&session),
        &|| preflight::masks(config, session.task.seq_len()),
        &|| preflight::one_batch(config, &*session.task, init_model, args.steps, &device),
    ];
    for check in checks {
        findings.add(check().map_err(at_its_place)?)?;
    }
    findings.end()?;
    match findings.all.iter().filter(|finding| !finding.is_fine).count() {
        0 => Ok(()),
        n_bad => bail!("{n_bad} of {} checks failed", checks.len()),
    }
}

/// The results so far.
struct Findings {
    /// Whether each is printed when it is known.
    printed: bool,
    all: Vec<Finding>,
}

impl Findings {
    fn add(&mut self, finding: Finding) -> Result<()> {
        if self.printed {
            let Finding { check, is_fine, text } = &finding;
            let sign = if *is_fine { "ok  " } else { "BAD " };
            print(&format!("{sign} {check:<9}  {text}\n"))?;
        }
        self.all.push(finding);
        Ok(())
    }

    /// Prints all as one JSON object, unless each has been printed.
    fn end(&self) -> Result<()> {
        if self.printed {
            return Ok(());
        }
        let is_fine = self.all.iter().all(|finding| finding.is_fine);
        let findings = self.all.iter().map(|Finding { check, is_fine, text }| {
            json!({ "check": check, "is_fine": is_fine, "text": text })
        });
        print_indented_json(
            &json!({ "is_fine": is_fine, "findings": findings.collect::<Vec<_>>() }),
        )
    }
}

fn model<T: Task>(session: &Session<T>) -> Finding {
    let n = thousands(session.params.n_parameters() as u64);
    let text = format!("{n} parameters, sequences of {}", session.task.seq_len());
    Finding { check: "model", is_fine: true, text }
}

/// Whether the trained model can be exported for `transformers`; if not, why.
fn export<T: RegisteredTask>(session: &Session<T>) -> Finding {
    let Session { task, config, .. } = session;
    let text = match foreseen(config, task.sizes(), task.row_meanings(&config.model)) {
        Ok(class) => format!("`transformers` has a class for it: {class}"),
        Err(reason) => format!("for Tealight only: {reason}"),
    };
    Finding { check: "export", is_fine: true, text }
}

/// Memory and disk space.
fn resources<T: Task>(session: &Session<T>) -> Result<Finding> {
    let of_memory = resources::memory_shortage(session, &session.ranks)?;
    let shortage = match of_memory {
        None => resources::disk_shortage(session, Path::new("."), None)?,
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
