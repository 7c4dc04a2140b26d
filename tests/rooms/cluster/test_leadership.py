"""A term of leadership: claimed, fenced at the store, over when Raft or the store says so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.inspect import scripts_of
from support.manual_clock import ManualClock

from tidewarden.cluster.leadership import LOOK_S, PATIENCE, RETRY_S, Leadership, stored_epoch
from tidewarden.errors import Error, NoLeader, Stale


class RecordingRaft:
    """
    Says that this node leads while ``leads`` is set; grants epochs as the committed claim does.
    """

    def __init__(self) -> None:
        self.leads = asyncio.Event()
        self.last = 0
        self.term = 1
        self.claims: list[tuple[int, int]] = []
        self.refusals: list[Error] = []
        self.transfers = 0
        self.alone = False

    async def elected(self) -> None:
        await self.leads.wait()

    def is_leader(self) -> bool:
        return self.leads.is_set()

    async def transfer(self, node: str | None) -> None:
        assert node is None
        self.transfers += 1
        if self.alone:
            raise NoLeader("nobody")
        self.leads.clear()

    async def claim(self, boot: int, seen: int) -> int:
        self.claims.append((boot, seen))
        if self.refusals:
            raise self.refusals.pop(0)
        self.last = max(self.last, seen) + 1
        return self.last


class Duty:
    """Duties that run until told otherwise; each start and end is kept."""

    def __init__(self) -> None:
        self.log: list[tuple[str, int, str]] = []
        self.result: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, epoch: int, holder: str) -> None:
        self.log.append(("start", epoch, holder))
        self.result = asyncio.get_running_loop().create_future()
        try:
            await self.result
        except asyncio.CancelledError:
            self.log.append(("cancel", epoch, holder))
            raise


class Scene:
    def __init__(self, n0: Any) -> None:
        self.raft, self.duty, self.clock = RecordingRaft(), Duty(), ManualClock()
        self.holder = "n0.7"
        self.link = n0.link
        self.reached_at = 0.0
        self.term = Leadership(
            "tw", self.raft, n0.link, n0.scripts, self.clock, lambda: self.holder, self.duty.run, lambda: self.reached_at
        )  # fmt: skip
        self.task = asyncio.create_task(self.term.run())

    def lead(self, leads: bool = True) -> None:
        (self.raft.leads.set if leads else self.raft.leads.clear)()
        self.term.raft_changed()

    async def fence(self) -> tuple[int, str]:
        epoch, holder = await self.link.call("HMGET", "{tw}:fence", "epoch", "holder")
        return int(epoch or 0), (holder or b"").decode()

    async def rounds(self, done: Any, limit: int = 200) -> None:
        for _ in range(limit):
            await self.link.call("PING")
            if done():
                return
            await self.clock.advance(RETRY_S / 4)
        raise AssertionError(f"not within so many rounds: {self.duty.log}")


@pytest.fixture
async def scene(node: Any) -> Any:
    made = Scene(await node("n0"))
    yield made
    made.task.cancel()
    await asyncio.gather(made.task, return_exceptions=True)
    assert made.term.epoch == 0


async def test_elected_claimed_fenced_then_the_duties(scene: Scene) -> None:
    await scene.clock.advance(1)
    assert scene.duty.log == []
    scene.lead()
    await scene.rounds(lambda: scene.duty.log)
    assert scene.duty.log == [("start", 1, "n0.7")]
    assert await scene.fence() == (1, "n0.7")
    assert (scene.term.epoch, scene.term.last_epoch, scene.term.terms) == (1, 1, 1)


async def test_the_duties_end_when_raft_names_another(scene: Scene) -> None:
    scene.lead()
    await scene.rounds(lambda: scene.duty.log)
    scene.term.raft_changed()
    await asyncio.sleep(0)
    assert scene.term.epoch == 1, "a change that is none ends nothing"
    scene.lead(False)
    await scene.rounds(lambda: len(scene.duty.log) == 2)
    assert scene.duty.log[1] == ("cancel", 1, "n0.7")
    assert (scene.term.epoch, scene.term.last_epoch) == (0, 1)
    scene.lead()
    await scene.rounds(lambda: len(scene.duty.log) == 3)
    assert scene.duty.log[2] == ("start", 2, "n0.7")


async def test_an_epoch_is_above_what_the_store_has_seen(scene: Scene) -> None:
    """A lost Raft journal cannot take epochs backwards."""
    await scene.link.call("HSET", "{tw}:fence", "epoch", 41, "holder", "n2.1")
    scene.lead()
    await scene.rounds(lambda: scene.duty.log)
    assert scene.raft.claims == [(7, 41)]
    assert scene.duty.log == [("start", 42, "n0.7")]


async def test_stale_duties_step_down_and_claim_anew_only_as_raft_says(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.lead()
    await scene.rounds(lambda: scene.duty.log)
    await scene.link.call("HSET", "{tw}:fence", "epoch", 9, "holder", "n2.1")
    scene.raft.leads.clear()
    scene.duty.result.set_exception(Stale("the fence is at epoch 9 held by n2.1"))
    for _ in range(20):
        await scene.link.call("PING")
        await scene.clock.advance(RETRY_S)
    assert len(scene.duty.log) == 1
    assert "stepping down: the fence is at epoch 9" in caplog.text
    scene.lead()
    await scene.rounds(lambda: len(scene.duty.log) == 2)
    assert scene.duty.log[1] == ("start", 10, "n0.7")


async def test_a_fence_that_moved_while_it_was_claimed(scene: Scene) -> None:
    real = scene.raft.claim

    async def claim(boot: int, seen: int) -> int:
        epoch = await real(boot, seen)
        if epoch == 1:
            await scene.link.call("HSET", "{tw}:fence", "epoch", 5, "holder", "n2.1")
        return epoch

    scene.raft.claim = claim
    scene.lead()
    await scene.rounds(lambda: scene.duty.log)
    assert scene.duty.log == [("start", 6, "n0.7")], (
        "refused under 1, claimed again above what is stored"
    )
    assert await scene.fence() == (6, "n0.7")


async def test_the_same_epoch_under_another_holder_is_refused(scene: Scene) -> None:
    run = scripts_of(scene.term).run
    assert await run(scene.link, "cluster.claim", ["{tw}:fence"], [3, "n0.7"]) == 1
    assert await run(scene.link, "cluster.claim", ["{tw}:fence"], [3, "n0.7"]) == 1
    for epoch, holder in ((3, "n1.1"), (2, "n0.7")):
        with pytest.raises(Stale, match=r"epoch 3 held by n0\.7"):
            await run(scene.link, "cluster.claim", ["{tw}:fence"], [epoch, holder])
    assert await scene.fence() == (3, "n0.7")


async def test_a_leader_claims_again_from_a_store_that_does_not_have_its_claim(
    scene: Scene,
) -> None:
    """A primary that died took the claim with it; its successor would let a former leader write."""
    scene.lead()
    await scene.rounds(lambda: scene.duty.log)
    await scene.link.call("HSET", "{tw}:fence", "epoch", 0, "holder", "n2.1")
    scene.term.store_changed()
    for _ in range(200):
        if await scene.fence() == (1, "n0.7"):
            break
        await scene.link.call("PING")
    assert await scene.fence() == (1, "n0.7")
    assert scene.duty.log == [("start", 1, "n0.7")]  # Its duties go on.
    await scene.link.call("HSET", "{tw}:fence", "epoch", 4, "holder", "n2.1")
    scene.term.store_changed()
    await scene.rounds(lambda: len(scene.duty.log) == 3)
    assert scene.duty.log[1:] == [("cancel", 1, "n0.7"), ("start", 5, "n0.7")]


async def test_a_leader_of_another_term_claims_anew(scene: Scene) -> None:
    """Deposed and elected again before anybody looked: somebody else may have led in between."""
    scene.lead()
    await scene.rounds(lambda: scene.duty.log)
    scene.raft.term = 3
    scene.term.raft_changed()
    await scene.rounds(lambda: len(scene.duty.log) == 3)
    assert scene.duty.log[1:] == [("cancel", 1, "n0.7"), ("start", 2, "n0.7")]


async def test_a_node_that_registered_anew_claims_anew(scene: Scene) -> None:
    scene.lead()
    await scene.rounds(lambda: scene.duty.log)
    scene.holder = "n0.8"
    scene.term.raft_changed()
    await scene.rounds(lambda: len(scene.duty.log) == 3)
    assert scene.duty.log[1:] == [("cancel", 1, "n0.7"), ("start", 2, "n0.8")]


async def test_a_claim_that_fails_is_tried_again(scene: Scene) -> None:
    scene.raft.refusals = [NoLeader("gone"), Error("surprise")]
    scene.lead()
    await scene.rounds(lambda: scene.duty.log)
    assert len(scene.raft.claims) == 3


async def test_duties_that_fail_are_begun_again_under_a_new_epoch(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.lead()
    await scene.rounds(lambda: scene.duty.log)
    scene.duty.result.set_exception(Error("a shard is broken"))
    await scene.rounds(lambda: len(scene.duty.log) == 2)
    assert scene.duty.log[1] == ("start", 2, "n0.7")
    assert "the leader's duties failed" in caplog.text


async def test_a_defect_is_not_hidden(scene: Scene) -> None:
    scene.lead()
    await scene.rounds(lambda: scene.duty.log)
    scene.duty.result.set_exception(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        await scene.task


async def test_cancelled_while_it_leads(scene: Scene) -> None:
    scene.lead()
    await scene.rounds(lambda: scene.duty.log)
    scene.task.cancel()
    await asyncio.gather(scene.task, return_exceptions=True)
    assert scene.duty.log[-1] == ("cancel", 1, "n0.7")
    assert len(asyncio.all_tasks()) <= 4, "nothing is left behind"


async def test_a_shard_whose_fence_is_far_ahead_is_caught_up_with_in_one_claim(
    scene: Scene,
) -> None:
    """A store put back from a copy, say: the cluster's fence is older than a shard's."""
    scene.lead()
    await scene.rounds(lambda: scene.duty.log)
    scene.duty.result.set_exception(Stale("the fence of {tw:q:0} is at epoch 5000 held by n2.1"))
    await scene.rounds(lambda: len(scene.duty.log) == 2)
    assert scene.duty.log[1] == ("start", 5001, "n0.7")
    assert scene.raft.claims == [(7, 0), (7, 5000)]


def test_a_refusal_without_an_epoch_says_none() -> None:
    assert stored_epoch(Stale("n0.7 was declared dead; the node has to register again")) == 0


async def test_every_fence_names_its_epoch(desk: Any) -> None:
    desk.run("queue.sweep", 9, 1)
    for script, *rest in (("queue.sweep", 1), ("queue.reap", "n1", 1, 1)):
        with pytest.raises(Stale) as refused:
            desk.run(script, 3, *rest)
        assert stored_epoch(refused.value) == 9


async def looks(scene: Scene, number: int) -> None:
    """So many looks whether the store answers, with the loop turning between them."""
    for _ in range(number):
        await scene.clock.advance(LOOK_S)
        for _ in range(5):
            await asyncio.sleep(0)


async def test_a_leader_that_does_not_reach_the_store_lets_another_lead(scene: Scene) -> None:
    scene.lead()
    await scene.rounds(lambda: scene.duty.log)
    await looks(scene, PATIENCE - 2)
    scene.reached_at += 1  # an answer: the count begins anew
    await looks(scene, PATIENCE - 2)
    assert scene.raft.transfers == 0
    await looks(scene, 4)
    assert scene.raft.transfers == 1


async def test_when_nobody_can_take_over_it_asks_less_and_less_often(scene: Scene) -> None:
    """The store is away from everybody: leadership does not go round and round."""
    scene.raft.alone = True
    scene.lead()
    await looks(scene, 15 * PATIENCE + 2)
    assert scene.raft.transfers == 4, "after one patience, two more, four more, eight more"
    scene.reached_at += 1
    await looks(scene, PATIENCE + 2)
    assert scene.raft.transfers == 5
