"""Each benchmark runs and prints its limit. What figures it prints is nobody's business here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "command",
    [
        "cycle --seconds 1 --connections 2",
        pytest.param("http --seconds 2 --connections 2 --polls 20", marks=pytest.mark.soak),
        pytest.param("starts --rounds 1 --ups 1", marks=pytest.mark.soak),
        pytest.param("batches --seconds 1 --batch 10", marks=pytest.mark.soak),
        pytest.param("worker --tasks 500 --rounds 1", marks=pytest.mark.soak),
        pytest.param(
            "cycle --durability quorum --seconds 2 --connections 2", marks=pytest.mark.soak
        ),
        pytest.param("burst --connections 10000", marks=pytest.mark.soak),
        pytest.param("memory --tasks 2000", marks=pytest.mark.soak),
        pytest.param("lateness --seconds 2 --tasks 1000", marks=pytest.mark.soak),
        pytest.param("outage --quick --accounts 1000", marks=pytest.mark.soak),
        pytest.param("refresh --seconds 4", marks=pytest.mark.soak),
        pytest.param("fleet --accounts 3000 --beside 1000 --seconds 2", marks=pytest.mark.soak),
        pytest.param("disconnect --rounds 10", marks=pytest.mark.soak),
        pytest.param("disconnect --rounds 10 --replicated", marks=pytest.mark.soak),
        pytest.param("failover --kills 1 --nodes 1 --stores 1 --faults 0", marks=pytest.mark.soak),
        pytest.param(
            "failover --kills 0 --nodes 0 --stores 0 --faults 1 --only switchover",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            "replicated --only tidewarden --seconds 1 --pending 2000 --kills 1 --deaths 1",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_benchmark_runs(command: str) -> None:
    name, *words = command.split()
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *words],
        cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "limit ≥" in done.stdout or "limit ≤" in done.stdout or name in ("cycle", "http"), (
        done.stdout
    )


def test_an_unknown_peer_is_refused_by_name() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers", "--only", "zeromq"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "no such peer: zeromq" in done.stderr
