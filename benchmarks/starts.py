"""
Measures how long a person waits until something of Tidewarden has started.

    python -m benchmarks.starts [--rounds 9] [--ups 3]

Processes are started in turns, so that the machine's drift is shared: ``python -c pass``, which is
the least that there could be, the help of the command line and of one of its verbs, and what
imports the SDK and a node. Printed are the median seconds of each, with the processor's. Then three
nodes with a store each are started in an empty folder by ``tidewarden up``, until it says READY.

Nobody else may use the machine meanwhile: where somebody did, the last line says ``BUSY``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import machine
from benchmarks.connections import Broken
from benchmarks.up import running_up
from tidewarden import __version__

NODES = 3
LIMIT_READY_S = 3.0
LOOK_S = 1.0
"""How long it is looked, before and after, whether others use the machine."""
NOT_COMPILED = "PYTHONDONTWRITEBYTECODE"
"""Where this is set, each process would compile everything anew."""


@dataclass
class Start:
    """Holds what is started, what it may take, and what it took."""

    name: str
    argv: tuple[str, ...]
    limit_s: float | None = None
    elapsed_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def run(self, environ: dict[str, str]) -> tuple[float, float]:
        """Return the seconds until it had ended, and the processor's. Raises: Broken: it failed."""
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, *self.argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environ,
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        elapsed_s = time.monotonic() - began
        if process.returncode:
            raise Broken(f"{self.name} ended with {process.returncode}")
        return elapsed_s, used.ru_utime + used.ru_stime


def starts() -> list[Start]:
    """Return what is started, the control first."""
    return [
        Start("python -c pass", ("-c", "pass")),
        Start("tidewarden --help", ("-m", "tidewarden", "--help"), 0.25),
        Start("tidewarden status --help", ("-m", "tidewarden", "status", "--help"), 0.25),
        Start("import tidewarden.client", ("-c", "import tidewarden.client"), 0.2),
        Start("import of a node", ("-c", "import tidewarden.node.main"), 0.6),
    ]


def measure(rounds: int) -> list[Start]:
    """Start everything in turns. The first turn counts for nothing: it compiles."""
    environ = {name: value for name, value in os.environ.items() if name != NOT_COMPILED}
    found = starts()
    for number in range(rounds + 1):
        for one in found:
            elapsed_s, cpu_s = one.run(environ)
            if number:
                one.elapsed_s.append(elapsed_s)
                one.cpu_s.append(cpu_s)
    return found


def report(found: list[Start]) -> None:
    """Print a line each: seconds, of the processor, beside the control, and the limit."""
    control_s = machine.median(found[0].elapsed_s)
    print(f"\n{'seconds, median':26}  {'elapsed':>8}  {'of cpu':>8}  {'× pass':>7}")
    for one in found:
        elapsed_s, cpu_s = machine.median(one.elapsed_s), machine.median(one.cpu_s)
        times = elapsed_s / control_s
        line = f"{one.name:26}  {elapsed_s:>8.3f}  {cpu_s:>8.3f}  {times:>7.1f}"
        if one.limit_s is not None:
            line += f"  {machine.against(one.limit_s, elapsed_s, least=False, unit=' s')}"
        print(line)


def ups(folder: Path, times: int) -> list[float]:
    """Return how long each ``up`` took until READY. Raises: Broken."""
    found = []
    for number in range(times):
        inside = folder / f"up{number}"
        inside.mkdir()
        with running_up(inside, NODES) as up:
            found.append(up.ready_s)
    return found


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    parser = machine.arguments("how long starts take")
    parser.add_argument("--rounds", type=int, default=9, help="turns of the short starts")
    parser.add_argument("--ups", type=int, default=3, help="starts of a cluster; 0: none")
    options = parser.parse_args(argv)
    with machine.own_folder(options.folder) as folder:
        machine.print_machine(folder, f"tidewarden {__version__}")
        busy = machine.is_busy(LOOK_S)
        report(measure(options.rounds))
        if options.ups:
            ready_s = machine.median(found := ups(folder, options.ups))
            kept = machine.against(LIMIT_READY_S, ready_s, least=False, unit=" s")
            each = ", ".join(f"{one:.2f}" for one in found)
            print(f"up of {NODES} nodes to READY: median {ready_s:.2f} s ({each}), {kept}")
        busy = machine.is_busy(LOOK_S) or busy
    print("BUSY: others used the machine" if busy else "quiet")


if __name__ == "__main__":
    main()
