"""Whether a process still has a port, as the kernel of its host says."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from pysyncobj.node import TCPNode
from pysyncobj.poller import createPoller
from support.manual_clock import ManualClock

from tidewarden.raft.port_probes import GIVEN_UP_S, PROBES_S, PortProbes


class Scene:
    """Probes in this thread; ``refused`` are those whose ports refused."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.poller = createPoller("auto")
        self.refused: list[TCPNode] = []
        self.probes = PortProbes(self.poller, self.clock, self.refused.append)

    def turn(self, seconds: float) -> None:
        """Let time pass, and hear what the kernel says."""
        self.clock.stall(seconds)
        self.probes.tick(self.clock.monotonic())
        self.poller.poll(0.01)


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.probes.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A process that is stopped: it has the port, and accepts nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=1) as made:
        yield made


def node_of(listener: socket.socket) -> TCPNode:
    return TCPNode(f"127.0.0.1:{listener.getsockname()[1]}")


def test_a_port_that_nobody_has_refuses_at_once(scene: Scene, listener: socket.socket) -> None:
    gone = node_of(listener)
    listener.close()
    scene.probes.begin(gone)
    scene.poller.poll(0.01)
    assert scene.refused == [gone]
    scene.turn(GIVEN_UP_S)
    assert scene.refused == [gone], "it is told once"


def test_one_that_a_stopped_process_has_does_not(scene: Scene, listener: socket.socket) -> None:
    """Also once nothing more fits into what the kernel keeps for it."""
    scene.probes.begin(node_of(listener))
    for _ in range(10):
        scene.turn(GIVEN_UP_S / 8)
    assert not scene.refused


def test_a_process_that_closes_its_port_last_is_found(
    scene: Scene, listener: socket.socket
) -> None:
    ending = node_of(listener)
    scene.probes.begin(ending)
    scene.poller.poll(0.01)
    assert not scene.refused
    listener.close()
    scene.turn(PROBES_S[1])
    assert scene.refused == [ending]


def test_nothing_is_told_of_one_that_is_heard_again(scene: Scene, listener: socket.socket) -> None:
    back = node_of(listener)
    scene.probes.begin(back)
    scene.poller.poll(0.01)
    scene.probes.end(back)
    listener.close()
    scene.turn(PROBES_S[1])
    scene.turn(GIVEN_UP_S)
    assert not scene.refused
