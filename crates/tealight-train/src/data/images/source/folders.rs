//! Class folders of PNG and JPEG.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rayon::prelude::*;

use super::fault;
use super::files::{Config, Root};
use super::layout::{Layout, Place, is_picture, of_unknown_type};
use crate::data::file::DataFile;
use crate::data::fingerprint::Fnv128;
use crate::data::images::item::{Content, Item, Reading, Source};
use crate::data::progress::Progress;
use crate::data::split::Split;
use crate::error::{Error, Result};
use crate::storage::files;

/// Files that are hashed at once, between two reports of progress.
const AT_ONCE: usize = 1 << 12;

/// The pictures below one or two folders, sorted by name.
#[derive(Debug)]
pub(in super::super) struct Folders {
    roots: Vec<Listed>,
}

/// A folder and the files in its class folders.
#[derive(Debug)]
struct Listed {
    root: Root,
    files: Vec<Listing>,
    /// The hash of all files, once they have been read.
    hash: OnceLock<u128>,
}

/// A file in a class folder.
#[derive(Debug)]
struct Listing {
    /// Relative to the root, with `/` between folders.
    name: String,
    class: String,
    split: Option<Split>,
    /// The hash of its content, once it has been read.
    hash: OnceLock<u128>,
}

impl Folders {
    /// Lists the files; none is opened.
    pub(in super::super) fn open(config: &Config) -> Result<Self> {
        let roots = config.roots()?.into_iter();
        let roots = roots.map(|root| Listed::new(root, Layout::new(config)));
        Ok(Self { roots: roots.collect::<Result<_>>()? })
    }

    fn n_files(&self) -> u64 {
        self.roots.iter().map(|listed| listed.files.len() as u64).sum()
    }
}

impl Listed {
    fn new(root: Root, mut layout: Layout) -> Result<Self> {
        if !root.path.is_dir() {
            return Err(fault(root.key, &root.path, "is not a folder"));
        }
        let mut names = Vec::new();
        list(&root.path, "", &mut names)?;
        names.sort_unstable();
        let mut files = Vec::with_capacity(names.len());
        for name in names {
            let place = layout.place(&name);
            let place = place.map_err(|rule| fault(root.key, &root.path.join(&name), &rule))?;
            if let Place::Class(class, split) = place {
                let (class, split) = (class.to_owned(), root.split.or(split));
                files.push(Listing { name, class, split, hash: OnceLock::new() });
            } else if is_picture(&name) && !name.contains('/') {
                return Err(fault(root.key, &root.path.join(&name), "lies in no class folder"));
            }
        }
        if files.is_empty() {
            let rule =
                "has no class folder with a picture: expected train/<class>/1.jpg or <class>/1.jpg";
            return Err(fault(root.key, &root.path, rule));
        }
        Ok(Self { root, files, hash: OnceLock::new() })
    }

    fn path(&self, listing: &Listing) -> PathBuf {
        self.root.path.join(&listing.name)
    }

    /// The hash of a file: its name, class, split and content.
    fn hash_of(&self, listing: &Listing) -> Result<u128> {
        let path = self.path(listing);
        let content = files::read(&path)?;
        let of_content = *listing.hash.get_or_init(|| Fnv128::hash(&content));
        let named = format!("{} {:?} {of_content}", listing.name, listing.split);
        Ok(Fnv128::hash(named.as_bytes()))
    }

    /// The hash of all files; `done` is called with the number of further ones.
    fn hash(&self, mut done: impl FnMut(u64)) -> Result<u128> {
        let mut all = Fnv128::default();
        for files in self.files.chunks(AT_ONCE) {
            let hashes = files.par_iter().map(|listing| self.hash_of(listing));
            for hash in hashes.collect::<Vec<_>>() {
                all.write(&hash?.to_le_bytes());
            }
            done(files.len() as u64);
        }
        Ok(*self.hash.get_or_init(|| all.finish()))
    }

    fn item(&self, listing: &Listing) -> Item {
        let Listing { name, class, split, hash } = listing;
        let content = if is_picture(name) {
            Content::File(self.path(listing), hash.get().copied())
        } else {
            of_unknown_type()
        };
        let name = format!("{}{name}", self.root.prefix());
        Item { name, class: class.clone(), split: *split, content }
    }
}

/// All files below a folder, hidden ones left out.
fn list(folder: &Path, prefix: &str, names: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(Error::io("list", folder))? {
        let entry = entry.map_err(Error::io("list", folder))?;
        let path = entry.path();
        let kind = entry.file_type().map_err(Error::io("read", &path))?;
        let file_name = entry.file_name();
        let name = file_name.to_string_lossy();
        if name.starts_with('.') {
            continue;
        }
        // A link to a folder below itself would be followed for ever; the system ends it with an error.
        if kind.is_dir() || kind.is_symlink() && path.is_dir() {
            list(&path, &format!("{prefix}{name}/"), names)?;
        } else {
            names.push(format!("{prefix}{name}"));
        }
    }
    Ok(())
}

impl Source for Folders {
    fn fingerprint(&self, progress: &mut dyn FnMut(Progress)) -> Result<u128> {
        let (mut done, total) = (0, self.n_files());
        let mut hash = Fnv128::default();
        for listed in &self.roots {
            let of_root = listed.hash(|n| {
                done += n;
                progress(Progress { done, total });
            });
            hash.write(&of_root?.to_le_bytes());
        }
        Ok(hash.finish())
    }

    fn read(&self, each: &mut dyn FnMut(Item, Progress) -> Reading) -> Reading {
        let total = self.n_files();
        let files = self
            .roots
            .iter()
            .flat_map(|listed| listed.files.iter().map(move |file| (listed, file)));
        for ((listed, listing), done) in files.zip(1..) {
            each(listed.item(listing), Progress { done, total })?;
        }
        Ok(())
    }

    fn files(&self) -> Vec<DataFile> {
        let file = |listed: &Listed| {
            let Root { key, path, .. } = &listed.root;
            Some(DataFile::new(key, path, *listed.hash.get()? as u64))
        };
        self.roots.iter().filter_map(file).collect()
    }

    fn fault(&self, name: &str, rule: &str) -> Error {
        let roots = self.roots.iter().map(|listed| &listed.root);
        let (Root { key, path, .. }, name) =
            Root::find(roots, name).expect("invariant: a picture has a root");
        fault(key, &path.join(name), rule)
    }
}
