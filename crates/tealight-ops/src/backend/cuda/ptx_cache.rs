//! The cache of compiled kernels on disk. A file of it is used only if it is whole: its last line has a hash of the
//! rest.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
#[cfg(feature = "cuda")]
use std::path::PathBuf;

use crate::rng::hash;

/// The folder of the cache: `$XDG_CACHE_HOME/tealight/kernels`, by default in `~/.cache`.
#[cfg(feature = "cuda")]
pub(super) fn folder() -> Option<PathBuf> {
    let variable =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))?;
    Some(folder.join("tealight/kernels"))
}

/// Reads the PTX in a file. Returns `None` if the file does not exist, or if its last line is not the hash that [`write`]
/// adds.
pub(super) fn read(path: &Path) -> Option<String> {
    let mut text = fs::read_to_string(path).ok()?;
    let end = text.trim_end_matches('\n').rfind('\n')? + 1;
    let is_whole = text[end..] == last_line(&text[..end]);
    text.truncate(end);
    is_whole.then_some(text)
}

/// Writes a temporary file and renames it, so that no other process reads half a file.
pub(super) fn write(path: &Path, ptx: &str) -> io::Result<()> {
    let Some(folder) = path.parent() else { return Ok(()) };
    fs::create_dir_all(folder)?;
    let aside = path.with_extension(format!("{}.tmp", std::process::id()));
    let ptx = format!("{}\n", ptx.trim_end_matches('\n'));
    let mut file = File::create(&aside)?;
    file.write_all(ptx.as_bytes())?;
    file.write_all(last_line(&ptx).as_bytes())?;
    // Renaming may reach the disk before the content does.
    file.sync_all()?;
    fs::rename(aside, path)
}

/// A comment of PTX.
fn last_line(ptx: &str) -> String {
    format!("// {:016x}\n", hash(ptx.bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_cut_off_or_changed_is_not_used() -> io::Result<()> {
        let folder = std::env::temp_dir().join(format!("tealight-ptx-{}", std::process::id()));
        let path = folder.join("softmax.ptx");
        let ptx = ".version 9.0\n.visible .entry softmax()\n{\n}\n";
        write(&path, ptx)?;
        assert_eq!(read(&path).as_deref(), Some(ptx));
        let whole = fs::read_to_string(&path)?;
        for len in 0..whole.len() {
            fs::write(&path, &whole[..len])?;
            assert_eq!(read(&path), None, "{len} bytes");
        }
        fs::write(&path, whole.replace("softmax", "softmin"))?;
        assert_eq!(read(&path), None);
        // Of a version that wrote no hash.
        fs::write(&path, ptx)?;
        assert_eq!(read(&path), None);
        assert_eq!(fs::read_dir(&folder)?.count(), 1);
        fs::remove_dir_all(folder)
    }
}
