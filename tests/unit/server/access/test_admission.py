"""
What peers that nobody has let in may use up: of processor time, each and together, and of places.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest
from support.manual_clock import ManualClock

from tidewarden.server.access import admission as module
from tidewarden.server.access.admission import (
    BURST_EACH_S,
    BURST_S,
    GRACE_S,
    KEPT_S,
    SHARE_EACH,
    TURN_S,
    AdmissionControl,
    UnauthenticatedPeer,
)

SHARE = 0.05


class Transport:
    """Records what becomes of it."""

    def __init__(self) -> None:
        self.reads = True
        self.turns = 0
        self.ended = False
        self.protocol: Any = None
        self.socket: socket.socket | None = None

    def get_extra_info(self, name: str) -> Any:
        assert name == "socket"
        return self.socket

    def pause_reading(self) -> None:
        assert self.reads
        self.reads = False
        self.turns += 1

    def resume_reading(self) -> None:
        assert not self.reads
        self.reads = True
        self.turns += 1

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return self.ended

    def abort(self) -> None:
        self.ended = True


class Scene:
    """Admission control whose clock and timers are the test's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, places: int = 10) -> None:
        self.clock = ManualClock()
        self.used_s = 0.0
        self.admission = AdmissionControl(
            self.clock, share=SHARE, places=places, meter=lambda: self.used_s
        )
        self._loop = asyncio.get_running_loop()
        monkeypatch.setattr(module, "asyncio", self)  # whose timers go by this clock

    def get_running_loop(self) -> Scene:
        return self

    def call_later(self, delay_s: float, work: Callable[[], None]) -> asyncio.Task[None]:
        async def later() -> None:
            await self.clock.sleep_until(self.clock.monotonic() + delay_s)
            work()

        return self._loop.create_task(later())

    def come(
        self, peer: str = "1.2.3.4:5", door: object = None
    ) -> tuple[UnauthenticatedPeer, Transport]:
        unauthenticated, transport = self.admission.enter(door, peer), Transport()
        unauthenticated.attach(transport, "inner")  # type: ignore[arg-type]
        return unauthenticated, transport

    def work(self, unauthenticated: UnauthenticatedPeer, cost_s: float) -> None:
        def costly(_: object) -> None:
            self.used_s += cost_s

        unauthenticated.run(costly, None)


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def spend(
    scene: Scene,
    mismatches: list[tuple[UnauthenticatedPeer, Transport]],
    seconds: float,
    cost_s: float,
) -> float:
    """
    Each sends whatever is read of it, a millisecond a turn; what they cost in so many seconds.
    """
    before = scene.used_s
    for _ in range(int(seconds * 1000)):
        for unauthenticated, transport in mismatches:
            if transport.reads:
                scene.work(unauthenticated, cost_s)
        await scene.clock.advance(0.001)
    return scene.used_s - before


async def test_nobody_waits_long_for_a_collection_of_garbage_in_his_turn(scene: Scene) -> None:
    unauthenticated, transport = scene.come()
    scene.work(unauthenticated, 0.1)
    assert not transport.reads
    for _ in range(15):
        await scene.clock.advance(0.1)
    assert transport.reads


@pytest.mark.parametrize("cost_s", [0.000_05, 0.001, TURN_S])
async def test_one_is_read_as_its_budget_allows(scene: Scene, cost_s: float) -> None:
    used_s = await spend(scene, [scene.come()], 20.0, cost_s)
    assert used_s <= 20.0 * SHARE_EACH + BURST_EACH_S + cost_s
    assert used_s >= 10.0 * SHARE_EACH, "it is read"


@pytest.mark.parametrize("cost_s", [0.000_1, 0.005])
async def test_all_together_as_theirs_allows(scene: Scene, cost_s: float) -> None:
    crowd = [scene.come(f"1.2.3.{n}:5") for n in range(50)]
    used_s = await spend(scene, crowd, 10.0, cost_s)
    assert used_s <= 10.0 * SHARE + BURST_S + 50 * cost_s
    assert all(transport.turns for _, transport in crowd), "each had its turn"


async def test_a_thousand_who_are_held_back_cost_nothing_while_they_are(scene: Scene) -> None:
    """What is counted is how often sockets are turned on and off: each costs."""
    crowd = [scene.come(f"1.2.{n}.4:5") for n in range(200)]
    await spend(scene, crowd, 1.0, 0.01)
    before = sum(transport.turns for _, transport in crowd)
    await spend(scene, crowd, 10.0, 0.01)
    turns = sum(transport.turns for _, transport in crowd) - before
    assert turns <= 2 * 10.0 * SHARE / 0.01 * 25, "some twenty are tried for each slice"


async def test_who_has_just_come_is_not_behind_them(scene: Scene) -> None:
    crowd = [scene.come(f"1.2.3.{n}:5") for n in range(50)]
    await spend(scene, crowd, 3.0, 0.001)
    assert not all(transport.reads for _, transport in crowd)
    assert scene.admission.wait_s() == 0.0, "the door takes somebody in"
    assert scene.admission.budget.left_s(scene.clock.monotonic()) > KEPT_S - 0.1
    _, transport = scene.come("5.6.7.8:9")
    assert transport.reads


async def test_those_who_were_quiet_and_ask_all_at_once_keep_nobody_out(scene: Scene) -> None:
    crowd = [scene.come(f"1.2.3.4:{n}") for n in range(10)]
    await scene.clock.advance(100.0)
    await spend(scene, crowd, 0.002, 0.1)
    assert not any(transport.reads for _, transport in crowd)
    assert scene.admission.wait_s() < 0.1 / SHARE, (
        "what one was read once may cost, not what all were"
    )
    assert scene.used_s < BURST_S + 0.1
    await spend(scene, crowd, 40.0, 0.1)
    assert all(transport.turns > 1 for _, transport in crowd), "each had its turn"


async def test_a_handshake_that_is_begun_is_ended_before_others_begin(scene: Scene) -> None:
    """Under a flood of those who begin one and go, no user would come to the end of his."""
    scene.admission.budget.spend(BURST_S, scene.clock.monotonic())
    await scene.clock.advance(0.1)
    user, transport = scene.come("5.6.7.8:9")
    scene.work(user, 0.001)
    for number in range(20):
        scene.work(scene.come(f"1.2.3.4:{number}")[0], 0.002)
    assert scene.admission.wait_s() > 0, "nobody else is taken in"
    assert transport.reads
    await scene.clock.advance(GRACE_S)
    scene.admission.budget.spend(BURST_S, scene.clock.monotonic())
    scene.admission.hold_all(scene.clock.monotonic())
    assert not transport.reads, "it had its time"


async def test_what_is_given_back_is_for_those_who_wait(scene: Scene) -> None:
    """A thousand users whose handshakes use up the budget do not wait for it to fill by itself."""
    first, second = scene.come("1.2.3.4:5"), scene.come("1.2.3.5:5")
    scene.work(first[0], BURST_S)
    scene.work(second[0], 0.004)
    assert not second[1].reads
    first[0].authenticated()
    assert second[1].reads


async def test_what_one_cost_who_is_let_in_is_given_back(scene: Scene) -> None:
    for number in range(1000):
        unauthenticated, transport = scene.come(f"1.2.3.4:{number}")
        scene.work(unauthenticated, 0.002)
        assert transport.reads
        unauthenticated.authenticated()
        assert (transport.protocol, transport.reads) == ("inner", True)
    assert scene.admission.wait_s() == 0.0
    assert len(scene.admission) == 0


async def test_one_who_is_held_back_and_let_in_is_read_at_once(scene: Scene) -> None:
    unauthenticated, transport = scene.come()
    scene.work(unauthenticated, 1.0)
    assert not transport.reads
    unauthenticated.authenticated()
    assert transport.reads
    await scene.clock.advance(1000.0)
    assert transport.reads
    scene.work(unauthenticated, 5.0)
    assert transport.reads, "it is none any more"


async def test_a_protocol_that_wants_nothing_gets_nothing(scene: Scene) -> None:
    unauthenticated, transport = scene.come()
    unauthenticated.pause_reading()
    unauthenticated.pause_reading()
    assert not transport.reads
    scene.work(unauthenticated, 1.0)
    await scene.clock.advance(1000.0)
    assert not transport.reads
    scene.work(unauthenticated, 1.0)
    unauthenticated.resume_reading()
    assert not transport.reads, "its budget is against it"
    await scene.clock.advance(1000.0)
    assert transport.reads


async def test_places_go_to_who_comes_last_once_the_first_had_their_time(scene: Scene) -> None:
    crowd = [scene.come(f"1.2.3.4:{n}") for n in range(9)]
    other, place = scene.come("5.6.7.8:9")
    assert scene.admission.wait_s() == pytest.approx(GRACE_S)
    await scene.clock.advance(GRACE_S)
    for number in range(9):
        assert scene.admission.wait_s() == 0.0
        assert crowd[number][1].ended
        scene.come(f"1.2.3.4:{10 + number}")
        await scene.clock.advance(GRACE_S)
    assert not place.ended, "another address has one place alone"
    assert not other.over
    assert (len(scene.admission), scene.admission.evicted_total) == (10, 9)


async def test_who_has_sent_what_is_not_read_yet_is_not_evicted(scene: Scene) -> None:
    """A thousand who log in at once at a node that is slow have done their part."""
    (owed, first), (other, second) = scene.come(), scene.come()
    first.socket, far = socket.socketpair()
    with first.socket, far:
        far.send(b"AUTH")
        await scene.clock.advance(GRACE_S)
        assert scene.admission.evict() == 0.0
        assert (owed.over, first.ended, other.over, second.ended) == (False, False, True, True)
        assert scene.admission.evict() > 0, "it is looked again soon"
        scene.work(owed, 1.0)  # It has cost too much, and is not read for that.
        assert scene.admission.evict() == 0.0
        assert first.ended


async def test_at_one_door(scene: Scene) -> None:
    here, there = object(), object()
    (_, first), (_, second) = scene.come(door=there), scene.come(door=here)
    await scene.clock.advance(GRACE_S)
    assert scene.admission.evict(here) == 0.0
    assert (first.ended, second.ended) == (False, True)
    assert scene.admission.evict(here) > 0, "there is nobody"


async def test_those_who_wait_for_room_are_told(scene: Scene) -> None:
    told: list[int] = []
    scene.admission.on_room.add(lambda: told.append(len(scene.admission)))
    (first, _), (second, _) = scene.come(), scene.come()
    first.gone()
    first.gone()
    second.authenticated()
    second.gone()
    assert told == [1, 0]


async def test_who_goes_while_it_waits_is_forgotten(scene: Scene) -> None:
    crowd = [scene.come(f"1.2.3.{n}:5") for n in range(20)]
    for unauthenticated, _ in crowd:
        scene.work(unauthenticated, 0.015)
    held = [transport for _, transport in crowd if not transport.reads]
    assert held
    for unauthenticated, transport in crowd:
        unauthenticated.gone()
        transport.ended = True
    await scene.clock.advance(1000.0)
    await settled()
    assert not any(transport.reads for transport in held)
    assert len(scene.admission) == 0
    assert scene.admission.wait_s() == 0.0


def test_the_share_of_all_is_more_than_that_of_one() -> None:
    assert module.SHARE_EACH < module.SHARE <= 0.1
    assert module.PLACES * 32 * 1024 <= 32 << 20
