//! Archives of class folders: tar (POSIX.1-1988 and later), also compressed. They are streamed.

use std::collections::BTreeSet;
use std::io::{BufRead, Read};
use std::path::Path;
use std::sync::OnceLock;

use super::fault;
use super::files::{Config, Root};
use super::layout::{Layout, Place, is_picture, of_unknown_type};
use crate::data::compressed::{self, Compression, ReadProgress};
use crate::data::file::DataFile;
use crate::data::fingerprint::Fnv128;
use crate::data::images::item::{Content, Item, Reading, Source};
use crate::data::progress::Progress;
use crate::error::{Error, Result};

/// The most bytes of a file in an archive.
const MAX_BYTES: u64 = 1 << 30;

/// One or two archives.
#[derive(Debug)]
pub(in super::super) struct Archives {
    archives: Vec<Archive>,
    config: Config,
}

#[derive(Debug)]
struct Archive {
    root: Root,
    compression: Compression,
    n_bytes: u64,
    /// The hash of its bytes, once they have been read.
    hash: OnceLock<u128>,
}

type Reader = Box<dyn BufRead + Send>;

/// The name of an archive without the ending of its compression, and the latter.
pub(in crate::data) fn compression(name: &str) -> (&str, Compression) {
    match name.strip_suffix(".tgz") {
        Some(_) => ("x.tar", Compression::Gzip),
        None => Compression::from_name(name),
    }
}

impl Archive {
    fn new(root: Root) -> Result<Self> {
        let fault = |rule: &str| fault(root.key, &root.path, rule);
        let name = root.path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        let (name, compression) = compression(&name);
        if Path::new(name).extension().is_none_or(|ending| ending != "tar") {
            return Err(fault("is no archive: expected .tar, .tar.gz, .tgz or .tar.zst"));
        }
        let metadata = std::fs::metadata(&root.path).map_err(Error::io("read", &root.path))?;
        if !metadata.is_file() {
            return Err(fault("is no archive: it is a folder"));
        }
        Ok(Self { compression, n_bytes: metadata.len(), hash: OnceLock::new(), root })
    }

    /// Hashes the bytes on the disk; `progress` receives the number of bytes so far.
    fn hash(&self, progress: &mut dyn FnMut(u64)) -> Result<u128> {
        let hash = compressed::hash(&self.root.path, progress)?;
        Ok(*self.hash.get_or_init(|| hash))
    }

    fn read(&self, config: &Config, each: &mut dyn FnMut(Item, u64) -> Reading) -> Reading {
        let (reader, progress) = compressed::open(&self.root.path, self.compression)?;
        let broken = |error: std::io::Error| self.fault(&format!("is cut off or damaged: {error}"));
        let mut layout = Layout::new(config);
        let (mut names, mut n_pictures) = (BTreeSet::new(), 0);
        let mut archive = tar::Archive::new(reader);
        for entry in archive.entries().map_err(broken)? {
            let mut entry = entry.map_err(broken)?;
            if !entry.header().entry_type().is_file() {
                continue;
            }
            let path = entry.path().map_err(broken)?;
            let name = path.to_string_lossy().replace('\\', "/");
            let name = name.trim_start_matches("./").to_owned();
            drop(path);
            if name.split('/').next_back().is_none_or(|file| file.starts_with('.')) {
                continue;
            }
            let place = if is_picture(&name) {
                layout.place(&name).map_err(|rule| self.fault_in(&name, &rule))?
            } else {
                layout.place_of_other(&name)
            };
            let Place::Class(class, split) = place else { continue };
            if !names.insert(Fnv128::hash(name.as_bytes())) {
                return Err(self.fault_in(&name, "is in the archive twice").into());
            }
            if entry.size() > MAX_BYTES {
                return Err(self.fault_in(&name, "is larger than 1 GiB").into());
            }
            let content = if is_picture(&name) {
                let mut bytes = Vec::with_capacity(entry.size() as usize);
                entry.read_to_end(&mut bytes).map_err(broken)?;
                Content::Encoded(bytes)
            } else {
                of_unknown_type()
            };
            let (class, split) = (class.to_owned(), self.root.split.or(split));
            let name = format!("{}{name}", self.root.prefix());
            each(Item { name, class, split, content }, progress.bytes())?;
            n_pictures += 1;
        }
        if n_pictures == 0 {
            let rule =
                "has no class folder with a picture: expected train/<class>/1.jpg or <class>/1.jpg";
            return Err(self.fault(rule).into());
        }
        Ok(self.read_to_end(archive.into_inner(), &progress)?)
    }

    /// Reads the bytes behind the end of the archive, so that the compression's checksum is verified, and compares the
    /// hash.
    fn read_to_end(&self, mut reader: Reader, progress: &ReadProgress) -> Result<()> {
        let rest = std::io::copy(&mut reader, &mut std::io::sink());
        rest.map_err(|error| self.fault(&format!("is cut off or damaged: {error}")))?;
        if self.hash.get().is_some_and(|hash| *hash != progress.hash()) {
            return Err(self.fault("changed while it was being read"));
        }
        Ok(())
    }

    fn fault(&self, rule: &str) -> Error {
        fault(self.root.key, &self.root.path, rule)
    }

    fn fault_in(&self, name: &str, rule: &str) -> Error {
        self.fault(&format!("cannot be used: `{name}` {rule}"))
    }
}

impl Archives {
    /// Finds the archives; they are not read yet.
    pub(in super::super) fn open(config: &Config) -> Result<Self> {
        let archives = config.roots()?.into_iter().map(Archive::new);
        Ok(Self { archives: archives.collect::<Result<_>>()?, config: config.clone() })
    }

    fn n_bytes(&self) -> u64 {
        self.archives.iter().map(|archive| archive.n_bytes).sum()
    }
}

impl Source for Archives {
    fn fingerprint(&self, progress: &mut dyn FnMut(Progress)) -> Result<u128> {
        let (mut before, total) = (0, self.n_bytes());
        let mut hash = Fnv128::default();
        hash.write(format!("{:?}", self.config.held_out).as_bytes());
        for archive in &self.archives {
            let of_file =
                archive.hash(&mut |done| progress(Progress { done: before + done, total }))?;
            hash.write(&of_file.to_le_bytes());
            before += archive.n_bytes;
        }
        Ok(hash.finish())
    }

    fn read(&self, each: &mut dyn FnMut(Item, Progress) -> Reading) -> Reading {
        let (mut before, total) = (0, self.n_bytes());
        for archive in &self.archives {
            let each = &mut |item, done| each(item, Progress { done: before + done, total });
            archive.read(&self.config, each)?;
            before += archive.n_bytes;
        }
        Ok(())
    }

    fn files(&self) -> Vec<DataFile> {
        let file = |archive: &Archive| {
            let Root { key, path, .. } = &archive.root;
            Some(DataFile::new(key, path, *archive.hash.get()? as u64))
        };
        self.archives.iter().filter_map(file).collect()
    }

    fn fault(&self, name: &str, rule: &str) -> Error {
        let roots = self.archives.iter().map(|archive| &archive.root);
        let (Root { key, path, .. }, name) =
            Root::find(roots, name).expect("invariant: a picture has a root");
        fault(key, path, &format!("cannot be used: `{name}` {rule}"))
    }
}
