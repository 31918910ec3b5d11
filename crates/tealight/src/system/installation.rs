//! How this program was installed, told from what lies around its file.

use std::env;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

/// A way to install, and whether a program in this directory was installed in it.
type Way = (&'static str, fn(&Path) -> bool);

/// In this order, because the directory of a package manager may hold a folder of Python's packages, too.
const WAYS: &[Way] = &[
    ("built in a source tree", is_target),
    ("by cargo", is_cargo),
    ("from a wheel", is_wheel),
    ("from a Debian package", is_debian),
];

/// How this program was installed: `from a wheel`.
pub(crate) fn installed() -> &'static str {
    static INSTALLED: LazyLock<&str> = LazyLock::new(|| {
        let program = env::current_exe().ok();
        program.as_deref().and_then(Path::parent).map_or("unknown", way)
    });
    *INSTALLED
}

/// How a program in `directory` was installed.
fn way(directory: &Path) -> &'static str {
    let found = WAYS.iter().find(|(_, holds)| holds(directory));
    found.map_or("as a single file", |(name, _)| name)
}

/// Cargo marks its build directory, which has one folder for each profile.
fn is_target(directory: &Path) -> bool {
    directory.parent().is_some_and(|target| target.join("CACHEDIR.TAG").is_file())
}

/// `cargo install` and `cargo binstall` list what they have installed.
fn is_cargo(directory: &Path) -> bool {
    directory.parent().is_some_and(|root| root.join(".crates.toml").is_file())
}

/// Installers of wheels list the files of a package beside its modules: `lib/python3.12/site-packages/*.dist-info`.
fn is_wheel(directory: &Path) -> bool {
    let names = |directory: &Path| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    let Some(lib) = directory.parent().map(|root| root.join("lib")) else { return false };
    names(&lib).iter().filter(|name| name.starts_with("python3")).any(|python| {
        ["site-packages", "dist-packages"].iter().any(|packages| {
            let is_ours =
                |name: &String| name.starts_with("tealight_cli-") && name.ends_with(".dist-info");
            names(&lib.join(python).join(packages)).iter().any(is_ours)
        })
    })
}

/// dpkg lists the files of each package.
fn is_debian(directory: &Path) -> bool {
    directory == Path::new("/usr/bin") && Path::new("/var/lib/dpkg/info/tealight.list").is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each way is recognised by the file that its installer writes, and a program alone is a single file.
    #[test]
    fn installers_are_known_by_what_they_write() {
        let root = tempfile::tempdir().unwrap();
        let bin = root.path().join("bin");
        fs::create_dir(&bin).unwrap();
        assert_eq!(way(&bin), "as a single file");
        let marks = [
            ("lib/python3.12/site-packages/tealight_cli-0.1.0.dist-info/RECORD", "from a wheel"),
            (".crates.toml", "by cargo"),
            ("CACHEDIR.TAG", "built in a source tree"),
        ];
        for (mark, name) in marks {
            let mark = root.path().join(mark);
            fs::create_dir_all(mark.parent().unwrap()).unwrap();
            fs::write(mark, "").unwrap();
            assert_eq!(way(&bin), name);
        }
    }
}
