"""Runs the commands of the book in a folder of its own, each of them once."""

import hashlib
import os
import shutil
import subprocess


class Work:
    def __init__(self, root, tealight, folder):
        self.folder = folder
        version = hashlib.sha256(tealight.read_bytes()).hexdigest()
        kept = folder / "version"
        if not kept.is_file() or kept.read_text() != version:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            kept.write_text(version)
        self.outputs = folder / "outputs"
        self.outputs.mkdir(exist_ok=True)
        programs = folder / "programs"
        programs.mkdir(exist_ok=True)
        for name, target in {"configs": root / "configs", "data": root / "data", "docs": root / "docs",
                             "programs/tealight": tealight}.items():
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(target)
        self.environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}",
                            "TEALIGHT_CACHE": str(folder / "cache"), "NO_COLOR": "1"}

    def output(self, command):
        """What the command prints on stdout; a command that fails ends the build."""
        kept = self.outputs / hashlib.sha256(command.encode()).hexdigest()[:16]
        if kept.is_file():
            return kept.read_text()
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=self.folder, env=self.environment,
                              capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise SystemExit(f"{command}: exit code {done.returncode}\n{done.stderr}")
        kept.write_text(done.stdout)
        return done.stdout
