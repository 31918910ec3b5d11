//! `samples.jsonl`: the answers of the model to a few fixed examples, one line per evaluation and example.
//!
//! ```text
//! {"step":500,"example":0,"input":"It was [MASK] in Oslo.","truth":["sunny"],
//!  "candidates":[[{"text":"sunny","probability":0.93},{"text":"rainy","probability":0.05}]]}
//! {"step":500,"example":0,"input":"To be or","text":" not to be, my lord."}
//! ```
//!
//! The first line is broken only in this comment. Lines of steps that a roll-back or a resumed run undoes are removed,
//! as lines of `metrics.jsonl` are.
//!
//! The pictures of examples are kept once, as `samples/0.png` and so on, because the data of a run may be gone when its
//! samples are looked at.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::jsonl::{self, Lines};
use super::{Event, Observer};
use crate::data::images::{Picture, encode};
use crate::error::Result;
use crate::storage::files;
use crate::task::sample::Sample;

/// The name of the file.
pub const FILE: &str = "samples.jsonl";
/// The directory of the pictures.
const PICTURES: &str = "samples";

/// The file with the picture of an example of a run, which exists for tasks of pictures.
pub fn picture_path(run: &Path, example: usize) -> PathBuf {
    run.join(PICTURES).join(format!("{example}.png"))
}

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleLine {
    /// Number of updates done.
    pub step: u64,
    /// Which of the fixed examples it is, from 0.
    pub example: usize,
    /// The example, and the answer of the model.
    #[serde(flatten)]
    pub sample: Sample,
}

/// Appends the samples of a run to `samples.jsonl`, and keeps their pictures.
#[derive(Debug)]
pub struct SampleLines {
    lines: Lines,
    run: PathBuf,
}

impl SampleLines {
    /// Opens the file in the directory `run` for appending; creates it if it does not exist.
    pub fn append(run: &Path) -> Result<Self> {
        Ok(Self { lines: Lines::append(&run.join(FILE))?, run: run.to_owned() })
    }

    /// Writes the picture of an example, unless an evaluation before has done so.
    fn keep(&self, example: usize, picture: &Picture) -> Result<()> {
        let path = picture_path(&self.run, example);
        if path.exists() {
            return Ok(());
        }
        let folder = self.run.join(PICTURES);
        files::refuse_link(&folder)?;
        files::create_directory(&folder)?;
        files::replace(&path, &encode(picture))
    }
}

impl Observer for SampleLines {
    fn observe(&mut self, event: &Event<'_>) -> Result<()> {
        match event {
            Event::Samples { step, samples } => {
                samples.iter().enumerate().try_for_each(|(example, sample)| {
                    if let Some(picture) = &sample.picture {
                        self.keep(example, picture)?;
                    }
                    self.lines.write(&SampleLine { step: *step, example, sample: sample.clone() })
                })
            }
            Event::RolledBack { to, number, .. } => self.lines.cut_after(*to, *number),
            // The lines before a checkpoint must be on the disk when the checkpoint is.
            Event::CheckpointSaving { .. } | Event::Finished { .. } => self.lines.sync(),
            _ => Ok(()),
        }
    }
}

/// Reads all lines. A last line that a crash truncated is ignored.
pub fn read(path: &Path) -> Result<Vec<SampleLine>> {
    let bytes = files::read(path)?;
    Ok(jsonl::lines(path, &bytes)?.into_iter().map(|(_, line)| line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::images::{PictureSize, decode};
    use crate::error::{BadStepReport, StepFault, StepQuantity};

    fn sample(text: &str) -> Sample {
        Sample { input: "To be".into(), text: Some(text.into()), ..Sample::default() }
    }

    #[test]
    fn lines_are_read_back_and_a_roll_back_removes_those_that_it_undoes() {
        let directory = tempfile::tempdir().unwrap();
        let mut lines = SampleLines::append(directory.path()).unwrap();
        let samples = [sample(" or"), sample("\n<b>")];
        for step in [5, 7] {
            lines.observe(&Event::Samples { step, samples: &samples }).unwrap();
        }
        let fault = StepFault::NotFinite { quantity: StepQuantity::Loss, value: f64::NAN };
        let bad_step = &BadStepReport { step: 8, fault, batches: 7..8, origin: None };
        lines.observe(&Event::RolledBack { bad_step, to: 5, number: 1, lr_factor: 0.5 }).unwrap();
        lines.observe(&Event::Samples { step: 6, samples: &samples[..1] }).unwrap();
        let read = read(&directory.path().join(FILE)).unwrap();
        let places: Vec<_> = read.iter().map(|line| (line.step, line.example)).collect();
        assert_eq!(places, [(5, 0), (5, 1), (6, 0)]);
        assert_eq!(read[1].sample, samples[1]);
    }

    #[test]
    fn the_picture_of_an_example_is_kept_once() {
        let directory = tempfile::tempdir().unwrap();
        let mut lines = SampleLines::append(directory.path()).unwrap();
        let size = PictureSize { height: 2, width: 3, channels: 1 };
        let picture = |grey| Some(Picture::new(size, vec![grey; 6]));
        for grey in [7, 9] {
            let samples = [sample(" or"), Sample { picture: picture(grey), ..sample(" not") }];
            lines.observe(&Event::Samples { step: 5, samples: &samples }).unwrap();
        }
        let kept = std::fs::read(picture_path(directory.path(), 1)).unwrap();
        assert_eq!(decode(&kept).ok(), picture(7));
        assert!(!picture_path(directory.path(), 0).exists());
        assert_eq!(read(&directory.path().join(FILE)).unwrap()[1].sample.picture, None);
    }
}
