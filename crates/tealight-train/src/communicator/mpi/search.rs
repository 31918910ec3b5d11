//! Finds the MPI library: the one that `TEALIGHT_MPI` names, or the first that exists among several.

use std::collections::BTreeMap;
use std::env::consts::{ARCH, OS};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::launcher::{Launcher, Variables};
use super::library::Library;
use crate::error::CommunicationError;

/// The environment variable that names the library.
pub(super) const LIBRARY: &str = "TEALIGHT_MPI";

/// Names and versions of the libraries.
const OPEN_MPI: [(&str, u32); 1] = [("libmpi", 40)];
/// The second is Debian's name.
const MPICH: [(&str, u32); 2] = [("libmpi", 12), ("libmpich", 12)];
/// MPICH 5.0.1 gives version 1 of the ABI the number 0.
const STANDARD: [(&str, u32); 2] = [("libmpi_abi", 1), ("libmpi_abi", 0)];

/// Variables that name directories in which an MPI library is installed.
const PREFIXES: [&str; 4] = ["OPAL_PREFIX", "MPI_HOME", "MPI_ROOT", "I_MPI_ROOT"];

/// Opens the library of the launcher.
pub(super) fn open(
    launcher: &Launcher,
    variables: Variables<'_>,
) -> Result<Library, CommunicationError> {
    if let Some(file) = variables(LIBRARY).filter(|file| !file.is_empty()) {
        let file = Path::new(&file);
        return Library::open(file).map_err(|reason| {
            let file = file.display();
            CommunicationError::Launch(format!("`{LIBRARY}` = `{file}` cannot be used: {reason}"))
        });
    }
    if !cfg!(unix) {
        return Err(CommunicationError::Launch(format!(
            "{launcher}, and Tealight finds MPI libraries on Linux and macOS, not on {OS}; set `{LIBRARY}` to the \
             library's path"
        )));
    }
    first(&names(variables), &directories(variables)).map_err(|reasons| {
        CommunicationError::Launch(format!(
            "{launcher}, and no MPI library is found: {reasons}; set `{LIBRARY}` to the path of the launcher's \
             library, or to `none` if the processes do not work together"
        ))
    })
}

/// The library that the variables name, or the first file in the directories of the launcher.
pub(super) fn file(variables: Variables<'_>) -> Option<PathBuf> {
    if let Some(named) = variables(LIBRARY).filter(|file| !file.is_empty()) {
        return Some(named.into());
    }
    files(&names(variables), &directories(variables)).find(|file| file.is_file())
}

/// The first library that can be used, or why each cannot.
fn first(names: &[String], directories: &[PathBuf]) -> Result<Library, String> {
    let mut failures: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for file in files(names, directories) {
        match Library::open(&file) {
            Ok(library) => return Ok(library),
            Err(reason) => failures.entry(reason).or_default().push(file),
        }
    }
    let mut reasons: Vec<_> =
        failures.iter().map(|(reason, files)| format!("{}: {reason}", list(files))).collect();
    if !directories.is_empty() {
        reasons.push(format!("{}: no others", list(directories)));
    }
    Err(reasons.join("; "))
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| format!("`{}`", path.display())).collect::<Vec<_>>().join(", ")
}

/// Each library in the directories of the launcher, then where the system searches.
fn files(names: &[String], directories: &[PathBuf]) -> impl Iterator<Item = PathBuf> {
    names.iter().flat_map(|name| {
        let installed = directories.iter().map(move |directory| directory.join(name));
        installed.filter(|file| file.is_file()).chain([PathBuf::from(name)])
    })
}

/// The names of libraries; names that belong to the launcher come first.
fn names(variables: Variables<'_>) -> Vec<String> {
    let is_open_mpi =
        ["OMPI_COMM_WORLD_SIZE", "PMIX_RANK"].iter().any(|name| variables(name).is_some());
    let families: [&[(&str, u32)]; 3] =
        if is_open_mpi { [&OPEN_MPI, &STANDARD, &MPICH] } else { [&MPICH, &STANDARD, &OPEN_MPI] };
    let name = |&(name, version): &(&str, u32)| match OS {
        "macos" => format!("{name}.{version}.dylib"),
        _ => format!("{name}.so.{version}"),
    };
    families.into_iter().flatten().map(name).collect()
}

/// Directories of libraries: beside the `mpirun` that the shell finds, and in directories that variables name.
fn directories(variables: Variables<'_>) -> Vec<PathBuf> {
    let named = PREFIXES.iter().filter_map(|name| variables(name)).map(PathBuf::from);
    let path = variables("PATH").unwrap_or_default();
    let mut directories = Vec::new();
    for prefix in named.chain(prefixes_of_launchers(&path)) {
        for folder in ["lib", "lib64", "lib/release", &format!("lib/{ARCH}-linux-gnu")] {
            let directory = prefix.join(folder);
            if directory.is_dir() && !directories.contains(&directory) {
                directories.push(directory);
            }
        }
    }
    directories
}

/// Where the first `mpirun` and the first `mpiexec` of the search path are installed, as found and with links
/// followed.
fn prefixes_of_launchers(path: &OsStr) -> impl Iterator<Item = PathBuf> {
    let found = ["mpirun", "mpiexec"].into_iter().filter_map(|name| {
        std::env::split_paths(path).map(|bin| bin.join(name)).find(|file| file.is_file())
    });
    let prefix = |file: &Path| file.parent()?.parent().map(Path::to_path_buf);
    found
        .flat_map(move |file| {
            [prefix(&file), file.canonicalize().ok().and_then(|file| prefix(&file))]
        })
        .flatten()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::fs;

    use super::*;

    const LAUNCHER: Launcher = Launcher { name: "`mpiexec`", variable: "PMI_SIZE", at_least: 3 };

    /// The error of `open` with these variables.
    fn refusal(set: &[(&str, &str)]) -> String {
        let variables = |name: &str| {
            set.iter().find(|(other, _)| *other == name).map(|(_, value)| OsString::from(value))
        };
        open(&LAUNCHER, &variables).err().unwrap().to_string()
    }

    fn file_names(set: &'static [(&'static str, &'static str)]) -> Vec<String> {
        let variables = |name: &str| {
            set.iter().find(|(other, _)| *other == name).map(|(_, value)| OsString::from(value))
        };
        names(&variables)
    }

    /// A library that is on every machine, and is not MPI's.
    const OTHER: &str = match OS.as_bytes() {
        b"macos" => "/usr/lib/libSystem.B.dylib",
        b"windows" => "kernel32.dll",
        _ => "libc.so.6",
    };

    #[test]
    fn the_launchers_own_library_comes_first() {
        let first = |set| file_names(set).swap_remove(0);
        let (open_mpi, mpich) = if cfg!(target_os = "macos") {
            ("libmpi.40.dylib", "libmpi.12.dylib")
        } else {
            ("libmpi.so.40", "libmpi.so.12")
        };
        assert_eq!(first(&[("OMPI_COMM_WORLD_SIZE", "2")]), open_mpi);
        assert_eq!(first(&[("PMIX_RANK", "0"), ("SLURM_STEP_NUM_TASKS", "2")]), open_mpi);
        assert_eq!(first(&[("PMI_SIZE", "2")]), mpich);
        assert_eq!(first(&[("SLURM_STEP_NUM_TASKS", "2")]), mpich);
    }

    #[test]
    fn a_library_beside_the_launcher_comes_before_the_systems() {
        let root = tempfile::tempdir().unwrap();
        let [bin, lib] = ["bin", "lib"].map(|name| root.path().join(name));
        fs::create_dir(&bin).unwrap();
        fs::create_dir(&lib).unwrap();
        fs::write(bin.join("mpirun"), "").unwrap();
        fs::write(lib.join("libmpi.so.12"), "").unwrap();
        let variables = |name: &str| (name == "PATH").then(|| bin.clone().into_os_string());
        let directories = directories(&variables);
        assert_eq!(directories[0], lib);
        let names = ["libmpi.so.12", "libmpi.so.40"].map(str::to_owned);
        let files: Vec<_> = files(&names, &directories).collect();
        assert_eq!(files[0], lib.join("libmpi.so.12"));
        assert_eq!(files[1..], ["libmpi.so.12", "libmpi.so.40"].map(PathBuf::from));
    }

    #[test]
    fn directories_that_variables_name_come_first() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("lib64")).unwrap();
        let variables = |name: &str| match name {
            "MPI_HOME" => Some(root.path().as_os_str().to_owned()),
            "OPAL_PREFIX" => Some("/nowhere".into()),
            _ => None,
        };
        assert_eq!(directories(&variables), [root.path().join("lib64")]);
    }

    #[test]
    fn a_refusal_lists_what_was_tried_and_the_remedy() {
        let names = ["libabsent.so.1", "libabsent.so.2"].map(str::to_owned);
        let reasons = first(&names, &[PathBuf::from("/nowhere/lib")]).err().unwrap();
        for part in ["`libabsent.so.1`", "`libabsent.so.2`", "`/nowhere/lib`: no others"] {
            assert!(reasons.contains(part), "{reasons}");
        }
    }

    #[test]
    fn a_named_library_that_is_absent_is_refused() {
        let message = refusal(&[("TEALIGHT_MPI", "/nowhere/libmpi.so")]);
        assert!(message.starts_with("`TEALIGHT_MPI` = `/nowhere/libmpi.so` cannot be used: "));
    }

    #[test]
    fn a_named_library_that_is_not_of_mpi_is_refused() {
        let message = refusal(&[("TEALIGHT_MPI", OTHER)]);
        assert!(message.ends_with("it is no MPI library: it lacks `MPI_Init_thread`"), "{message}");
    }

    #[test]
    fn a_named_file_that_is_no_library_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "no library").unwrap();
        let message = refusal(&[("TEALIGHT_MPI", file.path().to_str().unwrap())]);
        assert!(message.contains("cannot be used"), "{message}");
    }
}
