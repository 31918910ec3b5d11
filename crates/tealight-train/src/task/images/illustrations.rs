//! The pictures of a report: the confusion matrix, and mistakes side by side.

use super::Images;
use crate::task::report::classes::Mistake;
use crate::task::table::thousands;
use crate::task::{Captioned, Illustration};

/// Mistakes that are drawn.
const N_ON_SHEET: usize = 40;

impl Images {
    /// The confusion matrix, and the most confident of `mistakes`.
    pub(super) fn illustrations(
        &self,
        counts: Vec<Vec<u64>>,
        mistakes: &[Mistake],
    ) -> Vec<(&'static str, Illustration)> {
        let labels = self.labels().names().to_vec();
        let sheet = self.sheet(mistakes);
        vec![("confusion", Illustration::Confusion { labels, counts }), ("mistakes", sheet)]
    }

    /// The most confident mistakes.
    fn sheet(&self, mistakes: &[Mistake]) -> Illustration {
        let names = self.labels().names();
        let shown = mistakes.iter().take(N_ON_SHEET).filter_map(|mistake| {
            let Mistake { index, class, predicted, probability } = *mistake;
            let (picture, ..) = self.held_out(index)?;
            let prediction = format!("→ {}, {:.0} %", names[predicted], 100. * probability);
            Some(Captioned { picture, lines: vec![names[class].clone(), prediction] })
        });
        let pictures: Vec<_> = shown.collect();
        let title = match (mistakes.len(), pictures.len()) {
            (0, _) => "no mistakes".to_owned(),
            (wrong, n) if n == wrong => format!("mistakes: all {wrong}"),
            (wrong, n) => {
                format!("the {n} most confident of {} mistakes", thousands(wrong as u64))
            }
        };
        let caption =
            "the class of a picture, → the predicted class and its probability".to_owned();
        Illustration::Sheet { title, caption, pictures }
    }
}
