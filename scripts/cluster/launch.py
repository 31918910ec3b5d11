"""Starts ranks under the MPI libraries of this machine."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CONFIGS = ROOT / "configs"
TIMES = {"examples_per_second", "tokens_per_second"}
# A job that takes longer than this hangs.
LIMIT = 180.0


@dataclass(frozen=True)
class Mpi:
    """A launcher and the library that belongs to it."""

    name: str
    prefix: Path
    shared_object: Path
    is_open_mpi: bool
    # Whether TEALIGHT_MPI names the library.
    is_named: bool = False

    @property
    def major(self):
        return int(re.search(r"(\d+)\.", self.name).group(1))

    def flags(self):
        # More ranks than cores, and each may use all of them.
        return ["--oversubscribe", "--bind-to", "none"] if self.is_open_mpi else []

    def environment(self):
        environment = plain_environment()
        environment["PATH"] = f"{self.prefix / 'bin'}:{environment['PATH']}"
        if self.is_open_mpi:
            # For containers: to run as root; no reads of another process's memory; waiting ranks leave the core.
            environment |= {
                "OMPI_ALLOW_RUN_AS_ROOT": "1",
                "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
                "OMPI_MCA_mpi_yield_when_idle": "1",
            }
        if self.is_named:
            environment["TEALIGHT_MPI"] = str(self.shared_object)
        return environment


def plain_environment():
    """The environment without what a launcher has set."""
    launchers = ("OMPI_", "PMI_", "PMIX_", "PRTE_", "SLURM_", "HYDI_", "MPIR_", "TEALIGHT_")
    return {key: value for key, value in os.environ.items() if not key.startswith(launchers)}


def find(prefixes):
    """The MPI installations at these paths, and that of the system."""
    found = []
    system = Path("/usr")
    for prefix in [*prefixes, *([system] if (system / "bin/mpirun").exists() else [])]:
        version = subprocess.run(
            [prefix / "bin/mpirun", "--version"], capture_output=True, text=True, env=plain_environment()
        ).stdout
        number = re.search(r"\b(\d+\.\d+(\.\d+)?)", version).group(1)
        is_open_mpi = "Open MPI" in version
        file = "libmpi.so.40" if is_open_mpi else "libmpi.so.12"
        folders = [prefix / "lib", prefix / "lib64", prefix / "lib/x86_64-linux-gnu", prefix / "lib/aarch64-linux-gnu"]
        library = next((folder / file for folder in folders if (folder / file).exists()), None)
        if library is None:
            print(f"NOTE {prefix}/bin/mpirun has no {file}; it is left out")
            continue
        name = f"{'Open MPI' if is_open_mpi else 'MPICH'} {number}{' of the system' if prefix == system else ''}"
        mpi = Mpi(name, prefix, library, is_open_mpi)
        found.append(mpi)
        standard = library.with_name("libmpi_abi.so.1")
        if standard.exists():
            found.append(replace(mpi, name=f"{name} with the ABI of MPI 5", shared_object=standard, is_named=True))
    return found


@dataclass
class Ended:
    """A job that has ended."""

    status: int
    output: str
    seconds: float

    def last_lines(self, n=4):
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        return f"exit status {self.status}: " + " | ".join(lines[-n:])


class Job:
    """Processes that run. `parts` are the ranks: each the number of them and what they run."""

    def __init__(self, mpi, parts, folder, environment=None, flags=()):
        command = [str(mpi.prefix / "bin/mpirun"), *mpi.flags(), *flags]
        for number, (n, arguments) in enumerate(parts):
            command += [":"] if number else []
            command += ["-n", str(n), *map(str, arguments)]
        self.start(command, folder, mpi.environment() | (environment or {}))

    @classmethod
    def plain(cls, arguments, folder, environment=None):
        job = cls.__new__(cls)
        job.start([str(argument) for argument in arguments], folder, environment or plain_environment())
        return job

    def start(self, command, folder, environment):
        folder.mkdir(parents=True, exist_ok=True)
        self.log = open(folder / "output.txt", "w+")
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def ranks(self, binary):
        """The processes of this job that run `binary`, by rank."""
        parents, ranks = {self.process.pid}, {}
        listed = sorted(int(entry) for entry in os.listdir("/proc") if entry.isdigit())
        parent_of = {}
        for pid in listed:
            try:
                stat = Path(f"/proc/{pid}/stat").read_text()
                parent_of[pid] = (int(stat.rpartition(")")[2].split()[1]), stat.rpartition(")")[2].split()[0])
            except OSError:
                continue
        grew = True
        while grew:
            children = {pid for pid, (parent, _) in parent_of.items() if parent in parents}
            grew = not children <= parents
            parents |= children
        for pid in parents:
            try:
                if Path(os.readlink(f"/proc/{pid}/exe")) != binary or parent_of[pid][1] == "Z":
                    continue
                variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except (OSError, KeyError):
                continue
            for variable in variables:
                name, _, value = variable.partition(b"=")
                if name in (b"OMPI_COMM_WORLD_RANK", b"PMI_RANK"):
                    ranks[int(value)] = pid
        return ranks

    def wait(self, limit=LIMIT):
        try:
            status = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            status = "none: it hangs"
        seconds = time.monotonic() - self.started
        self.log.seek(0)
        output = self.log.read()
        self.log.close()
        return Ended(status, output, seconds)


def outcome(run):
    """What a run has written that must not depend on the number of ranks: a digest of each file."""
    files = [*run.glob("checkpoints/**/*"), run / "metrics.jsonl", run / "report.json"]
    return {str(file.relative_to(run)): digest(file) for file in files if file.is_file()}


def digest(file):
    content = file.read_bytes()
    if file.name == "metrics.jsonl":
        lines = [json.loads(line) for line in content.decode().splitlines()]
        content = repr([[item for item in line.items() if item[0] not in TIMES] for line in lines]).encode()
    return hashlib.sha256(content).hexdigest()


def difference(run, expected):
    """How the files of a run differ from `expected`; empty if they do not."""
    try:
        found = outcome(run)
    except (OSError, ValueError) as error:
        return str(error)
    names = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
    return f"{run.name}: unlike: {', '.join(names)}" if names else ""


class Report:
    """A line for each check."""

    def __init__(self):
        self.failures = []
        self.n = 0

    def check(self, name, fault, note=""):
        """`fault` is empty if the check passes."""
        self.n += 1
        if fault:
            self.failures.append(name)
            print(f"FAIL {name}: {fault}", flush=True)
        else:
            print(f"PASS {name}{': ' if note else ''}{note}", flush=True)

    def note(self, text):
        print(f"NOTE {text}", flush=True)

    def end(self):
        if self.failures:
            print(f"\n{len(self.failures)} of {self.n} checks failed:", *self.failures, sep="\n  ")
            sys.exit(1)
        print(f"\nall {self.n} checks passed")
