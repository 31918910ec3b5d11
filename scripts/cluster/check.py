#!/usr/bin/env python3
"""Holds training by several processes to its promises, under each MPI. Started by scripts/cluster_check.sh.

    bits      weights, optimizer state, state and metrics of 1, 2, 4 and 8 ranks are the same bytes
    control   sums of MPI_Allreduce are not: the negative control
    resume    4 ranks, then 1, then 2, are the same as never stopped
    kill      SIGKILL of a rank at random moments: the job ends, nothing is lost, it is resumed by any number of ranks
    signal    SIGTERM to a rank; SIGTERM, SIGINT and SIGUSR1 to the launcher: a checkpoint is written
    refuse    what cannot train together is refused by name, and nothing is written
    alone     the program needs no MPI
    network   step times over a network of limited bandwidth against the model of cost (needs root; only if named)
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import network
from launch import CONFIGS, ROOT, Job, Report, difference, find, outcome

SIZES = [2, 4, 8]
WEATHER = (
    CONFIGS / "weather/markov.toml",
    ["schedule.warmup_steps=3", "training.batch_size=16", "model.d_model=16", "model.n_layers=1"],
)
DIARY = (
    CONFIGS / "masked_lm/diary.toml",
    [
        "schedule.warmup_steps=2",
        "training.batch_size=2",
        "model.d_model=32",
        "model.n_layers=1",
        "task.seq_len=64",
        "task.n_validation=16",
        "task.corpus.n_documents=200",
        "task.corpus.n_validation=20",
        "task.corpus.n_days=3",
        "task.tokenizer.vocab_size=300",
    ],
)
# What the promise has to hold for: accumulation, dropout, clipping, a moving average.
ALL = [
    "training.micro_batches=8",
    "training.max_grad_norm=0.5",
    "training.ema_decay=0.9",
    "model.dropout=0.1",
    "log.every=1",
]


def steps(n, save):
    return [f"training.steps={n}", f"training.evaluate_every={save}", f"checkpoint.every={save}"]


class Checks:
    def __init__(self, binary, scratch, kills, seed):
        self.binary, self.scratch, self.kills = binary, scratch, kills
        self.random = random.Random(seed)
        self.report = Report()
        self.expected = {}
        self.n_folders = 0

    def folder(self):
        self.n_folders += 1
        return self.scratch / str(self.n_folders)

    def train(self, base, settings, *more):
        """The command that trains `base`, a file and settings, with further settings."""
        config, of_base = base
        sets = [part for setting in [*of_base, *settings] for part in ("--set", setting)]
        return [self.binary, "train", config, "--name=run", *sets, *more]

    def reference(self, base, settings, *more):
        """The outcome of one process without MPI."""
        key = str((base, settings, more))
        if key not in self.expected:
            folder = self.folder()
            ended = Job.plain(self.train(base, settings, *more), folder).wait()
            if ended.status != 0:
                sys.exit(f"a single process fails: {ended.last_lines()}")
            self.expected[key] = outcome(folder / "runs/run"), ended.seconds
        return self.expected[key]

    # ---- bits

    def bits(self, mpi):
        for base, kind in [(WEATHER, "weather"), (DIARY, "masked_lm")]:
            for optimizer in ["adamw", "muon"]:
                settings = [*ALL, *steps(9, 3), f"optimizer.kind={optimizer!r}"]
                expected, _ = self.reference(base, settings)
                for shard in [False, True]:
                    faults = [self.bits_of(mpi, n, base, settings, shard, expected) for n in SIZES]
                    faults = [f"{n} ranks: {fault}" for n, fault in zip(SIZES, faults) if fault]
                    name = f"{mpi.name}: {kind}, {optimizer}{', shard_optimizer' if shard else ''}: 1, 2, 4, 8 ranks"
                    self.report.check(name, "; ".join(faults), f"{len(expected)} files are the same bytes")

    def bits_of(self, mpi, n, base, settings, shard, expected):
        folder = self.folder()
        arguments = self.train(base, [*settings, f"distributed.shard_optimizer={str(shard).lower()}"])
        ended = Job(mpi, [(n, arguments)], folder).wait()
        return ended.last_lines() if ended.status != 0 else difference(folder / "runs/run", expected)

    # ---- control

    def control(self, mpi):
        program = [sys.executable, ROOT / "scripts/cluster/allreduce.py"]
        environment = {"MPI_LIBRARY": str(mpi.shared_object)}
        outputs = [Job(mpi, [(n, program)], self.folder(), environment).wait().output for n in [1, *SIZES]]
        words = [output.split() for output in outputs]
        if any(len(line) != 4 for line in words):
            return self.report.check(f"{mpi.name}: negative control", " | ".join(outputs))
        by_mpi, by_tree = {line[1] for line in words}, {line[3] for line in words}
        fault = "" if len(by_tree) == 1 else "the sums of the fixed tree differ"
        fault = fault or ("" if len(by_mpi) > 1 else "the sums of MPI_Allreduce agree, so they control nothing")
        note = f"{len(by_mpi)} different sums of MPI_Allreduce, one of the fixed tree"
        self.report.check(f"{mpi.name}: negative control, 1, 2, 4, 8 ranks", fault, note)

    # ---- resume

    def resume(self, mpi):
        for shard in ["false", "true"]:
            settings = [*ALL, *steps(12, 4), f"distributed.shard_optimizer={shard}"]
            expected, _ = self.reference(WEATHER, settings)
            folder, fault = self.folder(), ""
            for n, more in [(4, ["--stop-after", "3"]), (1, ["--resume", "--stop-after", "7"]), (2, ["--resume"])]:
                arguments = self.train(WEATHER, settings, *more)
                job = Job(mpi, [(n, arguments)], folder) if n > 1 else Job.plain(arguments, folder)
                ended = job.wait()
                if ended.status != 0:
                    fault = fault or f"{n} ranks: {ended.last_lines()}"
            # The checkpoints in between are of other steps.
            last = {name: digest for name, digest in expected.items() if "step-" not in name or "000012" in name}
            found = folder / "runs/run"
            for extra in found.glob("checkpoints/step-*"):
                if extra.name != "step-000012":
                    shutil.rmtree(extra)
            name = f"{mpi.name}: 4 ranks, then 1, then 2{', shard_optimizer' if shard == 'true' else ''}"
            self.report.check(name, fault or difference(found, last), "the same bytes as never stopped")

    # ---- kill

    def kill(self, mpi):
        settings = [*ALL, *steps(240, 20)]
        expected, _ = self.reference(WEATHER, settings)
        killed, faults, seconds, n_finished, folder = 0, [], [], 0, self.folder()
        while (killed < self.kills or folder.exists()) and not faults:
            n = self.random.choice(SIZES)
            run = folder / "runs/run"
            if not (run / "manifest.json").exists():
                # Rank 0 may have been killed while it created the directory, which is no run then.
                shutil.rmtree(run, ignore_errors=True)
            more = ["--resume"] if run.exists() else []
            job = Job(mpi, [(n, self.train(WEATHER, settings, *more))], folder)
            moment = self.random.uniform(0.0, 3.0) if killed < self.kills else None
            victim = self.victim(job, n, moment) if moment is not None else None
            before = latest(run)
            if victim is not None:
                rank, pids = victim
                os.kill(pids[rank], signal.SIGKILL)
                sent = time.monotonic()
                ended = job.wait(60)
                took = time.monotonic() - sent
                left = self.left_over(pids.values())
                killed += 1
                seconds.append(took)
                if ended.status == 0 or not isinstance(ended.status, int):
                    faults.append(f"after SIGKILL of rank {rank} of {n}: {ended.last_lines()}")
                if left:
                    faults.append(f"after SIGKILL of rank {rank} of {n} these still run: {left}")
            else:
                ended = job.wait()
                if ended.status != 0:
                    faults.append(f"{n} ranks: {ended.last_lines()}")
            if run.exists():
                faults += self.lost(run, before)
            if victim is None and not faults:
                fault = difference(run, expected)
                faults += [fault] if fault else []
                n_finished += 1
                folder = self.folder()
        name = f"{mpi.name}: SIGKILL of a random rank, {killed} times, {n_finished} runs"
        note = f"jobs ended within {max(seconds, default=0):.1f} s; all runs equal one that was never killed"
        self.report.check(name, "; ".join(faults), note)

    def victim(self, job, n, moment):
        """A random rank, and the processes of all, `moment` seconds after they have started; `None` if the job has
        ended before."""
        while len(job.ranks(self.binary)) < n and job.process.poll() is None:
            time.sleep(0.02)
        until = time.monotonic() + moment
        while time.monotonic() < until and job.process.poll() is None:
            time.sleep(0.01)
        ranks = job.ranks(self.binary)
        return (self.random.choice(sorted(ranks)), ranks) if len(ranks) == n else None

    def left_over(self, pids):
        """Those of these processes that still run two seconds after their launcher has ended."""
        until = time.monotonic() + 2
        while True:
            left = [pid for pid in pids if self.is_mine(pid)]
            if not left or time.monotonic() > until:
                return left
            time.sleep(0.1)

    def is_mine(self, pid):
        try:
            return Path(os.readlink(f"/proc/{pid}/exe")) == self.binary
        except OSError:
            return False

    def lost(self, run, before):
        """What is damaged, or missing of what there was `before` the signal."""
        if latest(run) == 0:
            return [f"the checkpoint of step {before} is lost"] if before else []
        verified = Job.plain([self.binary, "checkpoint", "verify", run], self.folder()).wait()
        faults = [] if verified.status == 0 else [f"checkpoint verify: {verified.last_lines()}"]
        return faults + ([] if latest(run) >= before else [f"the newest checkpoint was {before} and is {latest(run)}"])

    # ---- signal

    def signal(self, mpi):
        names = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "SIGINT", signal.SIGUSR1: "SIGUSR1"}
        settings = [*ALL, *steps(200000, 100000)]
        # Open MPI 4 waits before the SIGTERM and, as long again, after it. Open MPI 5 waits a quarter of a second.
        environment, note = {}, ""
        if mpi.is_open_mpi and mpi.major == 4:
            environment, note = {"OMPI_MCA_odls_base_sigkill_timeout": "5"}, " with odls_base_sigkill_timeout = 5"
        for to_rank, number in [
            (True, signal.SIGTERM),
            (True, signal.SIGUSR1),
            (False, signal.SIGTERM),
            (False, signal.SIGINT),
            (False, signal.SIGUSR1),
        ]:
            is_promised = to_rank or number == signal.SIGUSR1 or not mpi.is_open_mpi or mpi.major == 4
            whom = "a rank" if to_rank else f"the launcher{note if number != signal.SIGUSR1 else ''}"
            name = f"{mpi.name}: {names[number]} to {whom}"
            fault, said = self.signalled(mpi, settings, environment, to_rank, number)
            if is_promised:
                self.report.check(name, fault, said)
            else:
                self.report.note(f"{name}: {fault or said} (not promised: this launcher kills after a quarter second)")

    def signalled(self, mpi, settings, environment, to_rank, number):
        folder = self.folder()
        run = folder / "runs/run"
        job = Job(mpi, [(4, self.train(WEATHER, settings))], folder, environment)
        until = time.monotonic() + 60
        metrics = run / "metrics.jsonl"
        while not (metrics.exists() and metrics.stat().st_size > 500) and time.monotonic() < until:
            time.sleep(0.02)
        ranks = job.ranks(self.binary)
        if not ranks:
            return f"no rank runs: {job.wait(1).last_lines()}", ""
        if to_rank:
            rank = self.random.choice(sorted(ranks))
            os.kill(ranks[rank], number)
        else:
            os.kill(job.process.pid, number)
        sent = time.monotonic()
        ended = job.wait(20)
        took = time.monotonic() - sent
        step = latest(run)
        if step == 0:
            return f"no checkpoint; {ended.last_lines()}", ""
        if ended.status == 0:
            return "exit status 0", ""
        if self.left_over(ranks.values()):
            return "some ranks still run", ""
        expected, _ = self.reference(WEATHER, settings, "--stop-after", str(step))
        fault = difference(run, expected)
        is_told = "stopped by" in ended.output
        told = "" if is_told else "; the message `stopped by …` is missing"
        return fault, f"checkpoint of step {step}, exit status {ended.status}, after {took:.1f} s{told}"

    # ---- refuse

    def refuse(self, mpi, others):
        weather = self.train(WEATHER, [*ALL, *steps(9, 3)])
        other = self.train(WEATHER, [*ALL, *steps(9, 3), "optimizer.beta2=0.97"])
        self.refused(mpi, "other settings on rank 1", [(1, weather), (1, other)], ["rank 1 on", "optimizer.beta2"])

        folder = self.scratch / "data"
        lines = (ROOT / "data/my_pairs.tsv").read_text().splitlines(keepends=True)
        for place, text in [("first", lines), ("second", [*lines[1:], lines[0]])]:
            (folder / place).mkdir(parents=True, exist_ok=True)
            (folder / place / "my.tsv").write_text("".join(text))
        (folder / "empty").mkdir(exist_ok=True)
        base = (CONFIGS / "seq2seq/my_pairs.toml", ["task.source.path='my.tsv'"])
        small = ["training.micro_batches=8", "training.steps=4", "schedule.warmup_steps=1", "training.batch_size=2"]
        command = self.train(base, small)
        within = lambda place: ["env", "-C", folder / place, *command]
        parts = [(1, within("first")), (1, within("second"))]
        self.refused(mpi, "another path of the data on rank 1", parts, ["rank 1 on", "my.tsv"], folder / "first")
        if os.geteuid() == 0 and shutil.which("unshare"):
            # The same path has other contents on rank 1, as on a node with a stale copy.
            bind = f"mount --bind {folder}/second/my.tsv {folder}/first/my.tsv && exec \"$@\""
            elsewhere = ["unshare", "--mount", "sh", "-c", bind, "sh", *within("first")]
            parts = [(1, within("first")), (1, elsewhere)]
            words = ["rank 1 on", "the data", "my.tsv"]
            self.refused(mpi, "other data at the same path on rank 1", parts, words, folder / "first")
        parts = [(2, within("first")), (1, within("empty")), (1, within("first"))]
        self.refused(mpi, "data missing on rank 2", parts, ["rank 2 on", "my.tsv"], folder / "first")
        parts = [(1, within("empty")), (1, within("first"))]
        self.refused(mpi, "data missing on rank 0", parts, ["rank 0 on", "my.tsv"], folder / "empty")

        binary = self.scratch / "other"
        shutil.copy(self.binary, binary)
        with open(binary, "ab") as file:
            file.write(b"\0")
        parts = [(1, weather), (1, [binary, *weather[1:]])]
        self.refused(mpi, "another binary on rank 1", parts, ["rank 1 on", "program"])
        self.refused(mpi, "3 ranks for 8 micro-batches", [(3, weather)], ["training.micro_batches", "6 and 9"])
        absent = self.train((CONFIGS / "absent.toml", []), [])
        self.refused(mpi, "no such configuration", [(4, absent)], ["absent.toml"])
        parts = [(4, [*weather, "--runs", "/dev/null/runs"])]
        self.refused(mpi, "no directory for the run", parts, ["/dev/null/runs"])

        singleton = {"SLURM_STEP_NUM_TASKS": "2", "PATH": mpi.environment()["PATH"], "TEALIGHT_MPI": str(mpi.shared_object)}
        alone = folder / "singleton"
        ended = Job.plain(weather, alone, mpi.environment() | singleton).wait()
        self.told(f"{mpi.name}: one of 2 processes of srun, started without PMI", ended, ["srun"], alone)
        for other in others:
            self.unlike_library(mpi, other, weather)

    def unlike_library(self, mpi, other, command):
        """Open MPI 5 understands the launcher of Open MPI 4: then the run must be right."""
        folder = self.folder()
        ended = Job(mpi, [(2, command)], folder, {"TEALIGHT_MPI": str(other.shared_object)}).wait(60)
        if ended.status == 0:
            expected, _ = self.reference(WEATHER, [*ALL, *steps(9, 3)])
            fault = difference(folder / "runs/run", expected)
            return self.report.check(f"{mpi.name}: the library of {other.name} trains with it", fault)
        self.told(f"{mpi.name}: the library of {other.name}", ended, [], folder)

    def refused(self, mpi, what, parts, words, written_to=None, environment=None):
        folder = self.folder()
        for _ in range(3):
            ended = Job(mpi, parts, folder, environment).wait(60)
            if self.told(f"{mpi.name}: {what}", ended, words, written_to or folder, is_quiet=True):
                return
        self.report.check(f"{mpi.name}: refused: {what}", "", said(ended))

    def told(self, name, ended, words, folder, is_quiet=False):
        """Reports a fault, if there is one."""
        missing = [word for word in words if word not in ended.output]
        fault = "it trains" if ended.status == 0 else ""
        fault = fault or ("" if isinstance(ended.status, int) else str(ended.status))
        fault = fault or (f"the message lacks {missing}" if missing else "")
        fault = fault or (f"`{folder}/runs` was written" if (folder / "runs").exists() else "")
        if fault or not is_quiet:
            shown = fault and f"{fault}; {ended.last_lines()}"
            self.report.check(name.replace(": ", ": refused: ", 1), shown, said(ended))
        return bool(fault)

    # ---- alone

    def alone(self, mpis):
        linked = subprocess.run(["ldd", self.binary], capture_output=True, text=True).stdout
        found = [line.split()[0] for line in linked.splitlines() if "mpi" in line or "pmix" in line]
        self.report.check("the program is linked to no MPI", ", ".join(found))
        folder, settings = self.folder(), [*ALL, *steps(9, 3)]
        expected, _ = self.reference(WEATHER, settings)
        ended = Job.plain(self.train(WEATHER, settings), folder, {"PATH": "/nowhere"}).wait()
        self.report.check("it trains without MPI", difference(folder / "runs/run", expected) or (ended.status or ""))
        for mpi in mpis:
            folder = self.folder()
            none = {"TEALIGHT_MPI": "/nowhere/libmpi.so"}
            ended = Job(mpi, [(1, self.train(WEATHER, settings))], folder, none).wait()
            fault = difference(folder / "runs/run", expected) or (ended.status or "")
            self.report.check(f"{mpi.name}: one process needs no library", fault)
            folder, single = self.folder(), ["--quiet"]
            ended = Job(mpi, [(2, self.train(WEATHER, settings, *single))], folder, {"TEALIGHT_MPI": "none"}).wait()
            runs = [folder / "runs" / name for name in ["run", "run-2"]]
            faults = [difference(run, expected) for run in runs]
            name = f"{mpi.name}: with TEALIGHT_MPI=none two processes train alone"
            self.report.check(name, "; ".join(filter(None, faults)) or (ended.status or ""))


def latest(run):
    """The step of the newest checkpoint; 0 if there is none."""
    try:
        return int((run / "checkpoints/latest").read_text().strip().removeprefix("step-"))
    except (OSError, ValueError):
        return 0


def said(ended):
    """The program's message, without those of the launcher."""
    lines = [line.strip() for line in ended.output.splitlines()]
    return next((line for line in lines if line.startswith("error")), ended.last_lines(2))[:240]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--prefix", type=Path, action="append", default=[], help="an installation of MPI")
    parser.add_argument("--only", help="names of checks, separated by commas")
    parser.add_argument("--mpi", help="only those whose name contains this")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--network", action="store_true")
    parser.add_argument("--keep", action="store_true", help="keep what the runs have written")
    args = parser.parse_args()

    installed = find(args.prefix)
    mpis = [mpi for mpi in installed if not args.mpi or args.mpi in mpi.name]
    if not mpis:
        parser.error(f"no MPI is called {args.mpi!r}; there are: {', '.join(mpi.name for mpi in installed) or 'none'}")
    print("checks", *(mpi.name for mpi in mpis), sep="\n  ", flush=True)
    scratch = Path(tempfile.mkdtemp(prefix="tealight-cluster-")).resolve()
    checks = Checks(args.binary.resolve(), scratch, args.kills, args.seed)
    every = ["alone", "control", "bits", "resume", "refuse", "signal", "kill"]
    chosen = args.only.split(",") if args.only else every
    if unknown := set(chosen) - {*every, "network"}:
        parser.error(f"there is no check {', '.join(sorted(unknown))}; there are: {', '.join(every)}, network")
    try:
        if "alone" in chosen:
            checks.alone([mpi for mpi in mpis if not mpi.is_named])
        for mpi in mpis:
            others = [other for other in installed if other.prefix != mpi.prefix and not other.is_named]
            for name in chosen:
                if name == "refuse":
                    checks.refuse(mpi, others)
                elif name not in ("alone", "network"):
                    getattr(checks, name)(mpi)
        if args.network or "network" in chosen:
            network.measure(checks, mpis)
    finally:
        if args.keep:
            print(f"kept in {scratch}")
        else:
            shutil.rmtree(scratch, ignore_errors=True)
    checks.report.end()


if __name__ == "__main__":
    main()
