"""Steps of ranks in network namespaces, whose connections have a limited bandwidth, against the model of cost.

    c = (k+1)·(R−1)/R·P·b/B + 2(R−1)·n_b·α

All ranks share the cores of one machine, so their computation does not scale. Therefore the steps compute next to
nothing, and the communication is what a step takes longer with the limit than without. B and α are what messages from
one node to another reach under the same limit, in one direction at a time. The efficiency is that of machines which
compute their part of a step in one second, and then communicate as measured: 1 s / (1 s + c).

Open MPI is held to the model with the settings that docs/CLUSTER.md names, and measured with its defaults as well.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys

from launch import CONFIGS, ROOT, Job

NODES = 8
NETWORK = "10.77.0"
BRIDGE = "tealight-br"
AGENT = ROOT / "scripts/cluster/agent.sh"
BYTES = 1e6 / 8  # of a megabit
MICRO_BATCHES = 8
OPEN_MPI_SETTINGS = {
    # With one connection, large messages in both directions wait for each other.
    "OMPI_MCA_btl_tcp_links": "2",
    # The ring and the linear algorithm, in place of those that Open MPI chooses for four ranks or more.
    "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
    "OMPI_MCA_coll_tuned_allgatherv_algorithm": "3",
    "OMPI_MCA_coll_tuned_alltoallv_algorithm": "1",
}


def run(*words, check=True):
    return subprocess.run(words, check=check, capture_output=True, text=True)


def node(number):
    return f"tealight{number}"


def build():
    tear_down()
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "addr", "add", f"{NETWORK}.254/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    for i in range(1, NODES + 1):
        run("ip", "netns", "add", node(i))
        run("ip", "link", "add", f"tlveth{i}", "type", "veth", "peer", "name", "eth0", "netns", node(i))
        run("ip", "link", "set", f"tlveth{i}", "master", BRIDGE, "up")
        inside = ["ip", "-n", node(i)]
        run(*inside, "addr", "add", f"{NETWORK}.{i}/24", "dev", "eth0")
        run(*inside, "link", "set", "eth0", "up")
        run(*inside, "link", "set", "lo", "up")
        # Packets are limited one by one, not in batches of 64 KB.
        run("ip", "netns", "exec", node(i), "ethtool", "-K", "eth0", "tso", "off", "gso", "off", check=False)


def tear_down():
    for i in range(1, NODES + 1):
        run("ip", "netns", "del", node(i), check=False)
    run("ip", "link", "del", BRIDGE, check=False)


def limit(megabits):
    """Limits what each node sends; `None`: no limit."""
    for i in range(1, NODES + 1):
        device = ["dev", "eth0", "root"]
        run("ip", "netns", "exec", node(i), "tc", "qdisc", "del", *device, check=False)
        if megabits:
            burst = max(int(megabits * BYTES / 250), 70000)  # a packet that is yet to be segmented; at most 4 ms
            tbf = ["tbf", "rate", f"{megabits}mbit", "burst", str(burst), "limit", str(64 << 20)]
            run("ip", "netns", "exec", node(i), "tc", "qdisc", "add", *device, *tbf)


def job(mpi, n, command, folder, settings):
    """A job with one rank per node. `settings` are variables of Open MPI."""
    hosts = ",".join(f"{NETWORK}.{i}" for i in range(1, n + 1))
    parts = [(n, command)]
    if not mpi.is_open_mpi:
        flags = ["-launcher", "ssh", "-launcher-exec", AGENT, "-hosts", hosts, "-iface", BRIDGE]
        # MPICH was built for libfabric or for UCX, which would find the shared memory.
        tcp = {"FI_PROVIDER": "tcp", "FI_TCP_IFACE": "eth0", "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}
        return Job(mpi, parts, folder, tcp, map(str, flags))
    environment = {
        "OMPI_MCA_btl": "tcp,self",
        "OMPI_MCA_pml": "ob1",
        **settings,
        "OMPI_MCA_btl_tcp_if_include": f"{NETWORK}.0/24",
        "OMPI_MCA_oob_tcp_if_include": f"{NETWORK}.0/24",
        "OMPI_MCA_plm_rsh_agent": str(AGENT),
        "PRTE_MCA_plm_ssh_agent": str(AGENT),
        "PRTE_MCA_prte_if_include": f"{NETWORK}.0/24",
    }
    exported = [flag for name in environment if name.startswith("OMPI_") for flag in ("-x", name)]
    return Job(mpi, parts, folder, environment, ["--host", hosts, "--map-by", "node", *exported])


class Shape:
    """A model, and how long its steps take."""

    def __init__(self, checks, d_model, n_layers, steps):
        self.checks, self.steps = checks, steps
        self.n_parameters = None
        self.settings = [
            f"model.d_model={d_model}",
            f"model.n_layers={n_layers}",
            "training.batch_size=1",
            "training.steps=1000",
            "training.evaluate_every=1000",
            "checkpoint.every=1000",
            "schedule.warmup_steps=2",
            "log.every=2",
        ]

    def command(self):
        base = (CONFIGS / "weather/markov.toml", [])
        settings = [f"training.micro_batches={MICRO_BATCHES}", "distributed.overlap=false"]
        until = ["--stop-after", str(self.steps)]
        # As many threads everywhere, so that the same work takes the same time.
        return ["env", "RAYON_NUM_THREADS=1", *self.checks.train(base, [*self.settings, *settings], *until)]

    def together(self, mpi, n, settings):
        """The median of the seconds of a step."""
        folder = self.checks.folder()
        ended = job(mpi, n, self.command(), folder, settings).wait()
        if ended.status != 0:
            sys.exit(f"the job fails: {ended.last_lines(8)}")
        run = folder / "runs/run"
        self.n_parameters = json.loads((run / "manifest.json").read_text())["n_parameters"]
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        rates = [line["examples_per_second"] for line in lines if "examples_per_second" in line]
        return MICRO_BATCHES / statistics.median(rates[2:])


def modelled(n_ranks, n_parameters, bandwidth, latency):
    """Seconds of communication in a step, for a power of two (k = 1), f32, one bucket."""
    return 2 * (n_ranks - 1) / n_ranks * n_parameters * 4 / bandwidth + 2 * (n_ranks - 1) * latency


def measured(checks, mpi, settings):
    """Bytes per second in one direction, and seconds of a short message, between two nodes."""
    program = ["env", f"MPI_LIBRARY={mpi.shared_object}", sys.executable, ROOT / "scripts/cluster/pingpong.py"]
    ended = job(mpi, 2, program, checks.folder(), settings).wait()
    if "measured" not in ended.output:
        sys.exit(f"the job fails: {ended.last_lines(8)}")
    bandwidth, latency = ended.output.partition("measured ")[2].split()[:2]
    return float(bandwidth), float(latency)


def measure(checks, mpis):
    if os.geteuid() != 0 or not shutil.which("tc"):
        return checks.report.note("network: needs root and `tc` (apt-get install iproute2); left out")
    try:
        build()
        for mpi in mpis:
            if mpi.is_named:
                continue
            for settings in [OPEN_MPI_SETTINGS, {}] if mpi.is_open_mpi else [{}]:
                table(checks, mpi, settings)
    finally:
        tear_down()


def table(checks, mpi, settings, bandwidths=(100, 50), sizes=(2, 4, 8), computation=1.0):
    shape = Shape(checks, 128, 4, 12)
    limit(None)
    free = {n: shape.together(mpi, n, settings) for n in sizes}
    name = f"{mpi.name}{', with settings' if settings else ''}"
    print(f"\n{name}, {shape.n_parameters:,} parameters\n")
    print("| limit (Mbit/s) | R | c measured (ms) | c of the model | ratio | efficiency | of the model |")
    print("|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    worst = 0.0
    for megabits in bandwidths:
        limit(megabits)
        bandwidth, latency = measured(checks, mpi, settings)
        for n in sizes:
            found = shape.together(mpi, n, settings) - free[n]
            model = modelled(n, shape.n_parameters, bandwidth, latency)
            efficiency, expected = (computation / (computation + seconds) for seconds in (found, model))
            worst = max(worst, abs(efficiency / expected - 1))
            print(
                f"| {megabits} | {n} | {1e3 * found:.0f} | {1e3 * model:.0f} | {found / model:.2f} "
                f"| {efficiency:.2f} | {expected:.2f} |",
                flush=True,
            )
    print()
    note = f"off by {100 * worst:.0f} % at most"
    if mpi.is_open_mpi and not settings:
        return checks.report.note(f"{name}, with its defaults: efficiency against the model's: {note}")
    checks.report.check(f"{name}: efficiency within 15 % of the model's", "" if worst <= 0.15 else note, note)
