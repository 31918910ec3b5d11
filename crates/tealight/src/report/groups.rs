//! Which runs of a page share a colour: those of a variant of an ablation; otherwise each run has its own.

use maud::{Markup, html};

use super::ablation::Ablation;
use super::read::RunData;
use super::text::key;

/// The runs of a page by colour.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// What the colours stand for; nothing on the page of one run, where they stand for splits.
    pub(super) names: Vec<String>,
    /// The group of each run.
    of_runs: Vec<usize>,
}

impl Groups {
    pub(super) fn new(runs: &[RunData], ablation: Option<&Ablation>) -> Self {
        match ablation {
            _ if runs.len() < 2 => Self::default(),
            Some(ablation) => Self {
                names: ablation.labels(),
                of_runs: runs.iter().map(|run| ablation.variant_of(run.directory.path())).collect(),
            },
            None => Self {
                names: runs.iter().map(|run| run.name.clone()).collect(),
                of_runs: (0..runs.len()).collect(),
            },
        }
    }

    /// The group of run `index`; `None` where there are no groups.
    pub(super) fn of(&self, index: usize) -> Option<usize> {
        self.of_runs.get(index).copied()
    }

    /// The one legend of all charts, whose names the script makes buttons.
    pub(super) fn legend(&self) -> Markup {
        html! {
            @if !self.names.is_empty() {
                ul.legend.groups {
                    @for (index, name) in self.names.iter().enumerate() {
                        li data-group=(index) { (key(index)) " " (name) }
                    }
                }
            }
        }
    }
}
