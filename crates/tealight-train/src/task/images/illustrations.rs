//! The pictures of a report: the confusion matrix, and mistakes side by side.

use super::Images;
use super::report::{Mistake, Report};
use crate::task::table::thousands;
use crate::task::{Captioned, Illustration};

/// Mistakes that are drawn.
const N_ON_SHEET: usize = 40;

impl Images {
    /// The confusion matrix, and the most confident mistakes.
    pub(super) fn shown(&self, report: &Report) -> Vec<(&'static str, Illustration)> {
        let labels = self.labels().names().to_vec();
        let confusion = Illustration::Confusion { labels, counts: report.confusion.clone() };
        vec![("confusion", confusion), ("mistakes", self.sheet(report))]
    }

    /// The most confident mistakes.
    fn sheet(&self, report: &Report) -> Illustration {
        let shown = report.mistakes.iter().take(N_ON_SHEET).filter_map(|mistake| {
            let Mistake { index, label, predicted, probability, .. } = mistake;
            let (picture, ..) = self.held_out(*index)?;
            let prediction = format!("→ {predicted}, {:.0} %", 100. * probability);
            Some(Captioned { picture, lines: vec![label.clone(), prediction] })
        });
        let pictures: Vec<_> = shown.collect();
        let wrong = report.n_wrong();
        let title = match (wrong, pictures.len()) {
            (0, _) => "no mistakes".to_owned(),
            (wrong, n) if n as u64 == wrong => format!("mistakes: all {wrong}"),
            (wrong, n) => format!("the {n} most confident of {} mistakes", thousands(wrong)),
        };
        let caption =
            "the class of a picture, → the predicted class and its probability".to_owned();
        Illustration::Sheet { title, caption, pictures }
    }
}
