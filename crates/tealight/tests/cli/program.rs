//! Runs the program in a temporary folder and checks its output.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// Lines of a terminal: the limit on the length of error messages.
const SCREEN: usize = 25;

/// A short run: 40 examples, 963 parameters, 6 updates, checkpoints after 2, 4 and 6.
pub(crate) const TINY: &str = "\
seed = 7
[task]
kind = \"weather\"
window = 3
[task.source]
kind = \"markov\"
[task.regime]
kind = \"examples\"
n = 60
n_validation = 20
[model]
d_model = 8
n_layers = 1
n_heads = 2
[training]
steps = 6
batch_size = 5
evaluate_every = 2
[checkpoint]
every = 2
keep_last = 9
[log]
every = 1
";

/// Model and training of other short runs, to append to the table of a task.
pub(crate) const SMALL: &str = "\
[model]
d_model = 8
n_layers = 1
n_heads = 2
[training]
steps = 6
batch_size = 5
evaluate_every = 2
[checkpoint]
every = 2
[log]
every = 1
";

/// The exit code and output of the program.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// `None` if a signal ended the program.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    pub(crate) fn run(command: &mut Command) -> Result<Self> {
        let output = command.output()?;
        Self::new(command, output)
    }

    /// The program must neither panic nor be ended by a signal.
    fn new(command: &Command, output: Output) -> Result<Self> {
        let outcome = Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout)?,
            stderr: String::from_utf8(output.stderr)?,
        };
        assert!(!outcome.stderr.contains("panicked"), "{command:?}\n{}", outcome.stderr);
        assert!(outcome.code.is_some_and(|code| code < 100), "{command:?} {outcome:?}");
        Ok(outcome)
    }

    /// Asserts an error message that fits on a screen and contains all of `parts`.
    pub(crate) fn assert_refused(&self, parts: &[&str]) {
        let Self { code, stdout, stderr } = self;
        assert_ne!(*code, Some(0), "{stderr}");
        assert_eq!(stdout, "", "{stderr}");
        assert!(stderr.lines().count() <= SCREEN, "{stderr}");
        assert!(stderr.lines().any(|line| line.starts_with("error: ")), "{stderr}");
        for part in parts {
            assert!(stderr.contains(part), "`{part}` is not in\n{stderr}");
        }
    }
}

/// A folder with `tiny.toml`.
pub(crate) struct Folder {
    directory: TempDir,
}

impl Folder {
    pub(crate) fn new() -> Result<Self> {
        let folder = Self { directory: tempfile::tempdir()? };
        folder.write("tiny.toml", TINY)?;
        Ok(folder)
    }

    /// A folder with a finished run, `runs/tiny`.
    pub(crate) fn trained() -> Result<Self> {
        let folder = Self::new()?;
        folder.succeed(&["train", "tiny.toml"])?;
        Ok(folder)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result {
        Ok(fs::write(self.path(name), content)?)
    }

    pub(crate) fn read(&self, name: &str) -> Result<String> {
        Ok(fs::read_to_string(self.path(name))?)
    }

    /// A command that runs the program with `args` in the folder.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tealight"));
        command.args(args).current_dir(self.directory.path());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Result<Outcome> {
        Outcome::run(&mut self.command(args))
    }

    pub(crate) fn succeed(&self, args: &[&str]) -> Result<Outcome> {
        let outcome = self.run(args)?;
        assert_eq!(outcome.code, Some(0), "{args:?}\n{}", outcome.stderr);
        Ok(outcome)
    }

    /// As [`Self::run`], with `input` on standard input.
    pub(crate) fn run_with_input(&self, args: &[&str], input: &str) -> Result<Outcome> {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        child.stdin.take().ok_or("a pipe")?.write_all(input.as_bytes())?;
        Outcome::new(&command, child.wait_with_output()?)
    }

    /// As [`Self::succeed`]; the output is JSON.
    pub(crate) fn json(&self, args: &[&str]) -> Result<Value> {
        Ok(serde_json::from_str(&self.succeed(args)?.stdout)?)
    }

    pub(crate) fn read_json(&self, name: &str) -> Result<Value> {
        Ok(serde_json::from_str(&self.read(name)?)?)
    }

    /// Asserts that two runs have the same content in all of `files`.
    pub(crate) fn assert_same(&self, runs: [&str; 2], files: &[&str]) -> Result {
        for file in files {
            let [one, other] = runs.map(|run| fs::read(self.path(run).join(file)));
            assert!(one? == other?, "{file} differs in {runs:?}");
        }
        Ok(())
    }

    /// The program fails, names all of `parts`, and leaves the folder unchanged.
    pub(crate) fn refuse(&self, args: &[&str], parts: &[&str]) -> Result {
        let before = self.files()?;
        let outcome = self.run(args)?;
        outcome.assert_refused(parts);
        assert!(self.files()? == before, "{args:?} left something behind");
        Ok(())
    }

    /// `train tiny.toml` with `settings` is refused.
    pub(crate) fn refuse_settings(&self, settings: &[&str], parts: &[&str]) -> Result {
        let overrides = settings.iter().flat_map(|setting| ["--set", setting]);
        self.refuse(&["train", "tiny.toml"].into_iter().chain(overrides).collect::<Vec<_>>(), parts)
    }

    /// All paths in the folder with their contents; `None` for directories.
    pub(crate) fn files(&self) -> Result<BTreeMap<PathBuf, Option<Vec<u8>>>> {
        let mut files = BTreeMap::new();
        collect(self.directory.path(), &mut files)?;
        Ok(files)
    }
}

fn collect(directory: &Path, files: &mut BTreeMap<PathBuf, Option<Vec<u8>>>) -> Result {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
            files.insert(path, None);
        } else {
            let content = fs::read(&path)?;
            files.insert(path, Some(content));
        }
    }
    Ok(())
}

/// The root of the repository.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The path of a model folder that transformers has saved.
pub(crate) fn golden_model(name: &str) -> String {
    let models = repository().join("crates/tealight-train/tests/golden/models");
    models.join(name).display().to_string()
}
