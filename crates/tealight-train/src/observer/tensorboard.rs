//! TensorBoard event files with the values of `metrics.jsonl`, and images of attention maps.
//!
//! `tensorboard --logdir runs` finds the files by their name, `events.out.tfevents.<seconds>…`, and shows
//! all files of a directory as one run. Scalars have the tags `train/loss`, `validation/accuracy` and so on.
//! Every process writes its own file. The file of a resumed run begins with an event that makes TensorBoard
//! drop the later steps of earlier files.

mod message;
mod record;

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use super::jsonl::training_values;
use super::{Event, Observer};
use crate::error::{Error, Result};
use crate::inference::attention_map::AttentionMap;
use crate::storage::clock::since_1970;
use crate::storage::files;

/// An image for TensorBoard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The tag that TensorBoard shows it under.
    pub tag: String,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// The image in PNG format.
    pub png: Vec<u8>,
}

/// Draws attention maps as images. The caller supplies it, because this crate draws nothing.
pub type DrawMaps =
    Box<dyn Fn(&[AttentionMap]) -> Result<Vec<Image>, Box<dyn std::error::Error + Send + Sync>>>;

/// Writes an event file.
pub struct TensorBoard {
    file: File,
    path: PathBuf,
    draw: DrawMaps,
}

impl std::fmt::Debug for TensorBoard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TensorBoard").field("path", &self.path).finish_non_exhaustive()
    }
}

impl TensorBoard {
    /// Creates an event file in `directory`, for a run that starts or resumes at `step`.
    pub fn create(directory: &Path, step: u64, draw: DrawMaps) -> Result<Self> {
        let (file, path) = new_file(directory, since_1970().as_secs())?;
        let mut events = Self { file, path, draw };
        events.write(0, message::VERSION)?;
        if step > 0 {
            events.write(step + 1, &message::session_start())?;
        }
        files::sync_directory(directory)?;
        Ok(events)
    }

    fn write_scalars<'a>(
        &mut self,
        step: u64,
        split: &str,
        values: impl IntoIterator<Item = (&'a str, f64)>,
    ) -> Result<()> {
        let values: Vec<Vec<u8>> = values
            .into_iter()
            .map(|(name, value)| message::scalar(&format!("{split}/{name}"), value))
            .collect();
        self.write(step, &message::summary(&values))
    }

    /// Writes a record with a single `write`, so that a crash can truncate only the last record.
    fn write(&mut self, step: u64, fields: &[u8]) -> Result<()> {
        let event = message::event(since_1970().as_secs_f64(), step, fields);
        self.file.write_all(&record::framed(&event)).map_err(Error::io("write", &self.path))
    }
}

impl Observer for TensorBoard {
    fn observe(&mut self, event: &Event<'_>) -> Result<()> {
        match event {
            Event::Step(report) => {
                self.write_scalars(report.step, "train", training_values(report))
            }
            Event::Evaluated { step, split, metrics } => {
                let values = metrics.iter().map(|(name, value)| (name.as_str(), *value));
                self.write_scalars(*step, split, values)
            }
            Event::AttentionMaps { step, maps } => {
                let images = (self.draw)(maps).map_err(Error::Picture)?;
                let values: Vec<Vec<u8>> = images.iter().map(message::image).collect();
                self.write(*step, &message::summary(&values))
            }
            Event::CheckpointSaving { .. } | Event::Finished { .. } => {
                self.file.sync_data().map_err(Error::io("write", &self.path))
            }
            Event::RolledBack { to, .. } => self.write(to + 1, &message::session_start()),
            _ => Ok(()),
        }
    }
}

/// Creates a file with a new name. TensorBoard reads the files of a run in the order of their names, so the
/// name contains the time, and a number for files of the same second.
fn new_file(directory: &Path, seconds: u64) -> Result<(File, PathBuf)> {
    for number in 0..=u32::MAX {
        let path =
            directory.join(format!("events.out.tfevents.{seconds:010}.tealight.{number:03}"));
        match OpenOptions::new().append(true).create_new(true).open(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Error::io("create", &path)(error)),
            Ok(file) => return Ok((file, path)),
        }
    }
    unreachable!("invariant: there are more numbers than files")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::observer::StepReport;

    fn events(path: &Path) -> Vec<Vec<u8>> {
        record::tests::read(&std::fs::read(path).unwrap())
    }

    fn contains(event: &[u8], part: &[u8]) -> bool {
        event.windows(part.len()).any(|window| window == part)
    }

    #[test]
    fn what_is_told_is_in_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let png = vec![3, 1, 4, 1, 5];
        let image = Image { tag: "attention/layer 1".into(), width: 5, height: 7, png };
        let draw: DrawMaps = Box::new(move |_| Ok(vec![image.clone()]));
        let mut board = TensorBoard::create(directory.path(), 0, draw).unwrap();
        let metrics = BTreeMap::from([("accuracy".into(), 0.5), ("loss".into(), 0.75)]);
        let step = Event::Step(StepReport {
            step: 300,
            loss: 2.5,
            lr: 0.125,
            grad_norm: 0.75,
            examples_per_second: 3.,
            tokens_per_second: None,
            metrics: &metrics,
        });
        board.observe(&step).unwrap();
        board
            .observe(&Event::Evaluated { step: 7, split: "validation", metrics: &metrics })
            .unwrap();
        board.observe(&Event::AttentionMaps { step: 7, maps: &[] }).unwrap();
        let events = events(&board.path);
        assert_eq!(events.len(), 4);
        assert!(contains(&events[0], b"brain.Event:2"));
        // Field 2 of the event: 300 as a varint. Fields 1 and 2 of the value: tag and f32.
        assert!(contains(&events[1], &[0x10, 0xac, 0x02]));
        assert!(contains(&events[1], b"\x0a\x0atrain/loss\x15\x00\x00\x20\x40"));
        assert!(contains(&events[1], b"\x0a\x08train/lr\x15\x00\x00\x00\x3e"));
        assert!(contains(&events[2], b"\x0a\x0fvalidation/loss\x15\x00\x00\x40\x3f"));
        assert!(contains(&events[3], b"\x0a\x11attention/layer 1\x22"));
        assert!(contains(&events[3], b"\x08\x07\x10\x05\x18\x04\x22\x05\x03\x01\x04\x01\x05"));
    }

    #[test]
    fn a_resumed_run_has_a_second_file_that_overrules_the_first() {
        let directory = tempfile::tempdir().unwrap();
        let create = |step| TensorBoard::create(directory.path(), step, Box::new(|_| Ok(vec![])));
        let (first, second) = (create(0).unwrap(), create(5).unwrap());
        assert!(first.path < second.path);
        assert_eq!(events(&first.path).len(), 1);
        // Step 6, and field 7 with status START.
        let start = events(&second.path).remove(1);
        assert!(start.ends_with(&[0x10, 6, 0x3a, 2, 0x08, 1]), "{start:?}");
    }
}
