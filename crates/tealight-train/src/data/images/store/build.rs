//! Decodes the pictures of a source, batch by batch.
//!
//! ```text
//! one thread reads    →    all threads decode a batch    →    it is written in order
//! ```

use std::io::{Cursor, Seek, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use rayon::prelude::*;

use super::Options;
use super::write::Writer;
use crate::data::cache::create;
use crate::data::fingerprint::Fnv128;
use crate::data::images::item::{Content, Item, ReadingEnd, Source};
use crate::data::images::picture::{Picture, PictureSize};
use crate::data::progress::Progress;
use crate::error::{Error, Result};
use crate::storage::files;

/// Pictures in a batch, which all threads decode together.
const BATCH: usize = 1 << 10;
/// The bytes of files in a batch.
const BATCH_BYTES: usize = 1 << 23;

/// A store that is to be built.
pub(super) struct Build<'a> {
    pub(super) source: &'a dyn Source,
    pub(super) options: Options,
    pub(super) key: u128,
    pub(super) progress: &'a mut dyn FnMut(Progress),
}

/// A picture, or the fault of its file.
type Prepared = std::result::Result<Picture, String>;

/// Pictures that were read together, and how far the reading is.
type Batch = (Vec<Item>, Progress);

impl Build<'_> {
    /// Writes the pictures to a file.
    pub(super) fn file(self, path: &Path) -> Result<()> {
        let file = self.decode(create(path)?, path)?;
        file.sync_all().map_err(Error::io("write", path))
    }

    /// The bytes of [`Self::file`], in memory.
    pub(super) fn memory(self) -> Result<Vec<u8>> {
        let bytes = self.decode(Cursor::default(), Path::new("memory"));
        bytes.map(Cursor::into_inner)
    }

    /// Writes the pictures to `body`, which is `path` in errors.
    fn decode<W: Write + Seek>(self, body: W, path: &Path) -> Result<W> {
        let Self { source, options, key, progress } = self;
        let mut writing =
            Writing { source, options, key, path, body: Some(body), writer: None, first: None };
        let (mut n_left_out, mut first_left_out) = (0, None);
        thread::scope(|scope| {
            let (sender, batches) = sync_channel::<Batch>(1);
            let reader = thread::Builder::new().name("pictures".to_owned());
            let reader = reader.spawn_scoped(scope, move || read(source, &sender));
            let reader = reader.map_err(candle_core::Error::wrap)?;
            let written = write_all(&mut writing, batches, progress, &mut |fault| {
                n_left_out += 1;
                first_left_out.get_or_insert(fault);
            });
            let read = reader.join().expect("invariant: reading does not panic");
            // Where writing has failed, reading has only failed to hand over a batch.
            written.and(read)
        })?;
        writing.finish(n_left_out, first_left_out)
    }
}

/// Reads all pictures and sends them in batches, until the receiver is dropped.
fn read(source: &dyn Source, batches: &SyncSender<Batch>) -> Result<()> {
    let (mut batch, mut n_bytes) = (Vec::new(), 0);
    let mut last = Progress { done: 0, total: 0 };
    let read = source.read(&mut |item, progress| {
        n_bytes += item.content.n_bytes();
        last = progress;
        batch.push(item);
        if batch.len() < BATCH && n_bytes < BATCH_BYTES {
            return Ok(());
        }
        n_bytes = 0;
        let sent = batches.send((std::mem::take(&mut batch), progress));
        sent.map_err(|_| ReadingEnd::Stopped)
    });
    match read {
        Ok(()) => {
            let _ = batches.send((batch, last));
            Ok(())
        }
        Err(ReadingEnd::Stopped) => Ok(()),
        Err(ReadingEnd::Failed(error)) => Err(error),
    }
}

fn write_all<W: Write + Seek>(
    writing: &mut Writing<'_, W>,
    batches: Receiver<Batch>,
    progress: &mut dyn FnMut(Progress),
    left_out: &mut dyn FnMut(String),
) -> Result<()> {
    let (source, Options { preparation, skips_broken }) = (writing.source, writing.options);
    for (batch, done) in batches {
        let prepare = |item: &Item| {
            let picture = match &item.content {
                Content::File(path, hash) => {
                    let bytes = files::read(path)?;
                    // The store is found again by the hash, so it must not hold another content.
                    if hash.is_some_and(|hash| hash != Fnv128::hash(&bytes)) {
                        let rule = "changed while it was being read";
                        return Err(source.fault(&item.name, rule));
                    }
                    preparation.decode(&bytes)
                }
                Content::Encoded(bytes) => preparation.decode(bytes),
                Content::Pixels(picture) => Ok(preparation.prepare(picture.clone())),
                Content::Broken(rule) => Err(rule.clone()),
            };
            Ok(picture)
        };
        let decoded: Vec<Result<Prepared>> = batch.par_iter().map(prepare).collect();
        for (item, decoded) in batch.iter().zip(decoded) {
            match decoded? {
                Ok(picture) => writing.push(item, &picture)?,
                Err(rule) if skips_broken => {
                    left_out(writing.source.fault(&item.name, &rule).to_string());
                }
                Err(rule) => {
                    let rule = format!(
                        "{rule}; `task.data.skip_broken` = true (`train --skip-broken`) leaves out such files"
                    );
                    return Err(writing.source.fault(&item.name, &rule));
                }
            }
        }
        progress(done);
    }
    Ok(())
}

/// A file that is being written. The first picture decides the size of all.
struct Writing<'a, W: Write> {
    source: &'a dyn Source,
    options: Options,
    key: u128,
    path: &'a Path,
    /// The file, until the size is known.
    body: Option<W>,
    writer: Option<Writer<W>>,
    /// The first picture: its name and size.
    first: Option<(String, PictureSize)>,
}

impl<W: Write + Seek> Writing<'_, W> {
    fn push(&mut self, item: &Item, picture: &Picture) -> Result<()> {
        let io = Error::io("write", self.path);
        let (first, size) = self.first.get_or_insert_with(|| (item.name.clone(), picture.size));
        if *size != picture.size {
            let rule = unlike(picture.size, first, *size);
            return Err(self.source.fault(&item.name, &rule));
        }
        let Item { name, class, split, .. } = item;
        let named = (name.as_str(), class.as_str(), *split);
        let pushed = match (&mut self.writer, self.body.take()) {
            (Some(writer), _) => writer.push(picture, named),
            (None, body) => {
                let body = body.expect("invariant: it is taken once");
                Writer::new(body, *size, self.key).and_then(|mut writer| {
                    writer.push(picture, named)?;
                    self.writer = Some(writer);
                    Ok(())
                })
            }
        };
        pushed.map_err(io)
    }

    fn finish(self, n_left_out: u64, first_left_out: Option<String>) -> Result<W> {
        let Some(mut writer) = self.writer else {
            let first =
                first_left_out.map_or(String::new(), |first| format!(", the first: {first}"));
            let message = format!("there is no picture: {n_left_out} files are left out{first}");
            return Err(Error::config(["task.data.path"], message));
        };
        writer.notes.n_left_out = n_left_out;
        writer.notes.first_left_out = first_left_out;
        writer.finish().map_err(Error::io("write", self.path))
    }
}

/// The fault of a picture of this size, if the first picture has another size.
fn unlike(size: PictureSize, first_name: &str, first: PictureSize) -> String {
    let colour = |channels| if channels == 1 { "grey" } else { "in colour" };
    if size.channels != first.channels {
        let (this, that) = (colour(size.channels), colour(first.channels));
        return format!(
            "is {this}, and `{first_name}`, the first picture, is {that}: `task.colour` = \"rgb\" or \"grey\" makes \
             them alike"
        );
    }
    format!(
        "is {} x {} pixels, and `{first_name}`, the first picture, is {} x {}: without `task.size`, all pictures \
         have the same size",
        size.width, size.height, first.width, first.height
    )
}
