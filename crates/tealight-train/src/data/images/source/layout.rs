//! Class and split of a picture, from the folders that it lies in.
//!
//! ```text
//! cat/1.jpg                   class "cat", the split is drawn
//! train/cat/1.jpg             class "cat", to train on
//! test/cat/1.jpg              class "cat", held out; also val/ and validation/
//! pictures/train/cat/1.jpg    as without the folder that all are in
//! ```

use super::files::Config;
use crate::data::images::item::Content;
use crate::data::split::Split;

const TRAIN: &str = "train";
const HELD_OUT: [&str; 3] = ["test", "val", "validation"];

/// The folders that the names so far have in common. A fault is the end of a sentence that begins with the file's name.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    /// The folder that is held out: as set, or the first one seen.
    held_out: Option<String>,
    /// Whether it is set.
    is_set: bool,
    /// The folders that all class folders lie in, and whether there is a folder of a split below.
    first: Option<(Vec<String>, bool)>,
}

/// Where a file lies.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place<'a> {
    /// In a class folder.
    Class(&'a str, Option<Split>),
    /// Beside class folders, or in a folder of a split that is not read.
    Outside,
}

impl Layout {
    pub(super) fn new(config: &Config) -> Self {
        let held_out = config.held_out.clone();
        Self { is_set: held_out.is_some(), held_out, first: None }
    }

    /// Class and split of the file `name`, whose folders are separated by `/`.
    pub(super) fn place<'a>(&mut self, name: &'a str) -> Result<Place<'a>, String> {
        let mut folders: Vec<&str> = name.split('/').collect();
        folders.pop();
        let Some(class) = folders.pop() else { return Ok(Place::Outside) };
        let last = folders.last().copied();
        let is_held_out = |folder: &str| {
            HELD_OUT.contains(&folder) || self.is_set && self.held_out.as_deref() == Some(folder)
        };
        // A file directly in `train/` lies in no class folder.
        if last.is_none() && (class == TRAIN || is_held_out(class)) {
            return Ok(Place::Outside);
        }
        let split = match last {
            Some(TRAIN) => Some(Split::Train),
            Some(folder) if is_held_out(folder) => {
                if self.is_set && self.held_out.as_deref() != Some(folder) {
                    return Ok(Place::Outside);
                }
                self.hold_out(folder)?;
                Some(Split::Validation)
            }
            _ => None,
        };
        if split.is_some() {
            folders.pop();
        }
        self.check_folders(&folders, split.is_some())?;
        Ok(Place::Class(class, split))
    }

    /// As [`Self::place`], for a file that is no picture: a file that does not lie beside pictures is outside.
    pub(super) fn place_of_other<'a>(&self, name: &'a str) -> Place<'a> {
        if self.first.is_none() {
            return Place::Outside;
        }
        self.clone().place(name).unwrap_or(Place::Outside)
    }

    /// If there are several held-out folders, the settings must name one.
    fn hold_out(&mut self, folder: &str) -> Result<(), String> {
        let other = self.held_out.get_or_insert_with(|| folder.to_owned());
        if other == folder {
            return Ok(());
        }
        Err(format!(
            "lies in `{folder}`, and others in `{other}`: `task.data.held_out` must name the one that is held out"
        ))
    }

    fn check_folders(&mut self, folders: &[&str], has_split: bool) -> Result<(), String> {
        let now = || (folders.iter().map(|&folder| folder.to_owned()).collect(), has_split);
        let (first, first_has_split) = self.first.get_or_insert_with(now);
        if *first == folders && *first_has_split == has_split {
            return Ok(());
        }
        let shown = |folders: &str, has_split| {
            let split = if has_split { "train/" } else { "" };
            format!("`{folders}{split}<class>/`")
        };
        let joined =
            |folders: &[&str]| folders.iter().flat_map(|folder| [folder, "/"]).collect::<String>();
        let first: Vec<&str> = first.iter().map(String::as_str).collect();
        Err(format!(
            "lies in {}, and the first picture in {}: class folders lie side by side",
            shown(&joined(folders), has_split),
            shown(&joined(&first), *first_has_split)
        ))
    }
}

/// Whether the name of a file has the ending of a picture.
pub(in crate::data) fn is_picture(name: &str) -> bool {
    let ending = name.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase());
    matches!(ending.as_deref(), Some("png" | "jpg" | "jpeg"))
}

/// The content of a file in a class folder whose name has another ending.
pub(super) fn of_unknown_type() -> Content {
    Content::Broken("is of an unknown type: expected .png, .jpg or .jpeg".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_give_class_and_split() {
        let mut layout = Layout::default();
        let mut place = |name| layout.place(name).unwrap();
        assert_eq!(place("a/train/cat/1.png"), Place::Class("cat", Some(Split::Train)));
        assert_eq!(place("a/val/dog/1.png"), Place::Class("dog", Some(Split::Validation)));
        assert_eq!(place("README"), Place::Outside);
        let drawn = Layout::default().place("cat/1.png").unwrap();
        assert_eq!(drawn, Place::Class("cat", None));
        assert_eq!(Layout::default().place("train/1.png").unwrap(), Place::Outside);
    }

    #[test]
    fn folders_that_mean_two_things_are_refused() {
        let fault = |names: [&str; 2]| {
            let mut layout = Layout::default();
            layout.place(names[0]).unwrap();
            layout.place(names[1]).unwrap_err()
        };
        let two = fault(["val/cat/1.png", "test/cat/1.png"]);
        assert!(two.starts_with("lies in `test`, and others in `val`"), "{two}");
        let deep = fault(["cat/1.png", "pets/dog/1.png"]);
        assert!(deep.starts_with("lies in `pets/<class>/`, and the first picture in `<class>/`"));
        let mixed = fault(["train/cat/1.png", "dog/1.png"]);
        assert!(mixed.starts_with("lies in `<class>/`, and the first picture in `train/<class>/`"));
    }

    #[test]
    fn the_settings_choose_the_folder_that_is_held_out() {
        let config = Config { held_out: Some("val".to_owned()), ..Config::default() };
        let mut layout = Layout::new(&config);
        assert_eq!(layout.place("test/cat/1.png").unwrap(), Place::Outside);
        let held_out = Place::Class("cat", Some(Split::Validation));
        assert_eq!(layout.place("val/cat/1.png").unwrap(), held_out);
    }
}
