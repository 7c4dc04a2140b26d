"""
The store's clock is stepped (by libfaketime) while a cluster runs: no lease ends because of it, and
it is said.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster.harness import CALM, CLUSTER, Cluster, serving, until

LIBRARY = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)
LEASE_MS = 5000


class Clock:
    """The store's clock: ``step(seconds)`` sets how far it is from the machine's."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.step(0)

    def step(self, seconds: int) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{seconds:+d}s\n")
        fresh.rename(self._file)


@pytest.fixture
def stepped(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Cluster, Clock]]:
    if LIBRARY is None:
        pytest.skip("libfaketime is not installed (Debian: faketime)")
    clock = Clock(tmp_path / "clock")
    with monkeypatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(LIBRARY))
        patch.setenv("FAKETIME_TIMESTAMP_FILE", str(tmp_path / "clock"))
        patch.setenv("FAKETIME_NO_CACHE", "1")
        patch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        made = Cluster(tmp_path / "cluster", nodes=2, extra=CALM)
    with serving(request, made):
        yield made, clock


@pytest.mark.parametrize("seconds", [7200, -7200])
def test_a_lease_outlives_a_step_of_the_stores_clock(
    stepped: tuple[Cluster, Clock], seconds: int
) -> None:
    nodes, clock = stepped
    one, two = nodes.nodes.values()
    one.say("Q.PUT", "jobs", "x", "ID", "a")
    with one.client() as holder, nodes.valkey.client() as store:
        asked_at = time.monotonic()
        (held,) = holder.execute_command("Q.TAKE", "LEASE", LEASE_MS, "FROM", "jobs")
        before_s = store.time()[0]
        clock.step(seconds)
        until(
            lambda: abs(store.time()[0] - before_s - seconds) < 60,
            what="the store sees another clock",
        )
        # another consumer asks all the time, as one that waits
        with two.client(socket_timeout=120) as waiter:
            (again,) = waiter.execute_command("Q.TAKE", "WAIT", 90_000, "FROM", "jobs")
        lasted_s = time.monotonic() - asked_at
        assert lasted_s > LEASE_MS / 1000 - 1
        assert (again[1], again[2] > held[2]) == ("a", True)
        assert int(store.hget(f"{{{CLUSTER}}}:clock", "steps")) == 1
    for node in (one, two):
        until(
            lambda node=node: node.metric("tidewarden_node_store_clock_steps_total") == 1,
            what="both nodes know",
        )
        assert "stepped" in node.http("/health/ready").json()["warning"]
    logged = [
        text for node in (one, two) for text in node.messages() if "clock has stepped by" in text
    ]
    assert len(logged) in (1, 2), "who finds it first says so, or both who find it at one moment"
