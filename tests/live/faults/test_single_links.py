"""
One link to the store is cut at a time, drawn by a seed, and all others go on: whoever waits at a
node is woken all the same.

The links of a node know of each other's losses only by what the product does about them: what an
answer would have said that was lost with its link, no other link says again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import pytest
from support.cluster.harness import TROUBLE, Node, background, until_async
from support.faults import probes
from support.faults.history import put_once
from support.faults.link_faults import PURPOSES
from support.faults.probes import PROBES, Probe
from support.faults.siege import end, ids_left, progress, siege
from support.faults.storm import Storm
from support.faults.workload import Workload
from support.store.proxy import Part, Proxy

SEED = int(os.environ.get("SOAK_SEED", "1"))
FAULTS = 300
STOPS = 12
"""Of these, how often the store stands still."""
WOKEN_S = 5.0
"""
Where nothing else runs it takes a tenth of a second; a wake-up that was lost comes after a minute,
with the end of the wait.
"""
AFTER_A_STOP_S = 10.0
"""
What the store had not read when its connection was cut it may run then, and a node looks for that
after six seconds.
"""
LIFE_S = 15
HAPPENS_S = 1.5
"""
For so long something is waited for that is to be lost. On some links nothing passes just then.
"""
PARTS: tuple[Part, ...] = get_args(Part)
WAYS = ("reset", "hold up", "hold down", "silence up", "silence down")


@dataclass(frozen=True, slots=True)
class Cut:
    """What is done to a link, by its purpose: the store's, "" , stands still."""

    purpose: str
    how: str

    def __str__(self) -> str:
        return f"{self.purpose}: {self.how}" if self.purpose else "the store stands still"


CUTS = [
    Cut(purpose, how)
    for purpose in PURPOSES
    for how in (*PARTS, *WAYS)
    if purpose != "ears" or how not in ("request", "reply")
]
STOP = Cut("", "stop")
STOP_S = 13.5
"""
So long that links which owe an answer are cut for it, and those that only listen are not: after 10
to 12.5, and 15 to 20 s.
"""
SHORT: tuple[tuple[str, Cut], ...] = (
    *((name, Cut("data", "reply")) for name in PROBES),
    *((name, Cut("data", "message")) for name in ("put here", "release")),
    *((name, Cut("data", "request")) for name in ("put here", "disconnect", "settings")),
    *((name, Cut("ears", "message")) for name in ("put there", "end", "room", "lock", "settings")),
    ("put there", Cut("ears", "reset")),
    ("put there", Cut("ears", "silence down")),
    ("put here", Cut("data", "reset")),
    ("put here", Cut("data", "hold up")),
    ("release", Cut("data", "silence down")),
    *(("put here", Cut(purpose, "reply")) for purpose in ("control", "accounts", "commit")),
    ("put here", Cut("commit", "request")),
    *((name, Cut("sweep", part)) for name in ("delayed here", "delayed there") for part in ("request", "reply")),
)  # fmt: skip


@dataclass
class Account:
    """
    What the rounds came to. ``met``: the faults that befell something; ``took``: how long after its
    fault each probe was through, s; ``wrong``: those that were not.
    """

    met: Counter[Cut] = field(default_factory=Counter)
    took: list[tuple[float, str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class Round:
    """One fault and one probe."""

    def __init__(
        self, storm: Storm, load: Workload, key: str, node: Node, cut: Cut, last_s: float
    ) -> None:
        self._storm, self._load, self._key, self._node, self._cut = storm, load, key, node, cut
        self._last_s = last_s
        self._fault: asyncio.Task[bool] | None = None

    @property
    def _proxy(self) -> Proxy:
        return self._storm.cluster.proxies[self._node.name]

    def _begin(self, asked: str, heard: str) -> None:
        """The fault goes on from here; what is aimed at has not been sent yet."""
        cut, proxy = self._cut, self._proxy
        loss = None
        if cut is STOP:
            self._storm.cluster.valkey.freeze()
        elif cut.how in PARTS:
            aim = {"data": asked, "ears": heard}.get(cut.purpose, "")
            loss = proxy.lose(cut.purpose, cut.how, aim.encode())
        elif cut.how == "reset":
            proxy.cut(cut.purpose)
        else:
            what, direction = cut.how.split()
            way = proxy.named(cut.purpose)[direction]
            way.lost = what == "silence"
            way.open.set() if way.lost else way.open.clear()

        async def last() -> bool:
            try:
                if loss is not None:
                    if cut.purpose in ("accounts", "commit"):
                        await asyncio.to_thread(self._put_account)
                    return await asyncio.to_thread(loss.happened.wait, HAPPENS_S)
                if cut.how != "reset":
                    await asyncio.sleep(self._last_s)
                return True
            finally:
                self._storm.cluster.calm()

        self._fault = asyncio.ensure_future(last())

    def _put_account(self) -> None:
        """
        So that something passes where only what is of tokens does; the account is there, and stays
        as it is.
        """
        account, token = next(iter(self._load.provider.seeds.items()))
        with contextlib.suppress(*TROUBLE):
            self._node.say(
                "T.PUT", f"counted/{account}", json.dumps({"refresh_token": token}), "KEEP"
            )

    async def run(self, name: str, account: Account) -> None:
        there = self._storm.dice.choice(
            [one for one in self._storm.cluster.nodes.values() if one is not self._node]
        )
        probe = Probe(self._load, self._node, there, self._key, self._begin)
        what = f"{self._key}, {name} at {self._node.name}; {self._cut}"
        limit_s = AFTER_A_STOP_S if self._cut is STOP else WOKEN_S
        going = asyncio.ensure_future(PROBES[name](probe))
        try:
            await until_async(
                lambda: self._fault is not None or going.done(), what=f"all is in place: {what}"
            )
            if going.done():
                going.result()
            assert self._fault is not None
            met = await self._fault
            account.met[self._cut] += met
            over = time.monotonic()
            await asyncio.wait({going}, timeout=limit_s)
            if going.done():
                going.result()
                account.took.append((time.monotonic() - over, what))
            else:
                queues = [of(self._node) for of in probes.QUEUES_OF]
                lying = {queue: dict(self._storm.cluster.audit(queue)) for queue in queues}
                account.wrong.append(
                    f"not within {limit_s:g} s of the fault's end: {what}; {lying}"
                )
                for queue in queues:  # the next probe there begins anew
                    await asyncio.to_thread(self._node.say, "Q.PURGE", queue)
            print(
                f"{time.monotonic() - over:6.2f} s  {what}{'' if met else ' (nothing passed)'}",
                flush=True,
            )
        finally:
            going.cancel()
            await asyncio.wait({going})


async def besiege(storm: Storm, load: Workload, drawn: Iterator[tuple[str, Cut, float]]) -> None:
    """Round after round, each at the node that its fault has; then the calm, and the checker."""
    begun, account = time.monotonic(), Account()
    await asyncio.to_thread(probes.configure, storm.cluster)
    async with background(*load.jobs()) as jobs:
        await progress(storm, load)
        for number, (name, cut, last_s) in enumerate(drawn):
            node = await (storm.leader() if cut.purpose == "sweep" else storm.someone())
            storm.injected[str(cut)] += 1
            await Round(storm, load, f"r{number}-{node.name}", node, cut, last_s).run(name, account)
            dead = [job for job in jobs if job.done()]
            assert not dead, f"a client ended: {dead}"
        took = sorted(account.took)
        print(
            f"\n{len(took)} rounds in {time.monotonic() - begun:.0f} s, of which"
            f" {account.met.total()} faults befell something"
        )
        print(
            f"probes were through {took[len(took) // 2][0]:.2f} s after (median); slowest:"
            f" {took[-3:]}"
        )
        assert not account.wrong, "\n".join(account.wrong)
        await end(storm, load, begun, took[-1][0])
    wrong = []
    node = storm.cluster.alive()[0]
    for of in probes.QUEUES_OF:
        for queue in map(of, storm.cluster.nodes.values()):
            left = ids_left(storm.cluster, queue)
            wrong += [f"{task_id} lies in {queue}" for task_id in left]
            puts = await asyncio.to_thread(node.say, "Q.STATS", queue)
            wrong += put_once(load.history, queue, left, puts.get("count_put", 0))
    assert not wrong
    assert account.met.total() > len(took) / 2, "a run in which nothing is lost finds nothing"


@pytest.mark.timeout(600)
async def test_each_link_alone(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Every probe with its answer lost, and some of everything else."""
    async with siege(
        request, tmp_path, 5, short=True, life_s=LIFE_S, apart=False, synced=False
    ) as (storm, load):
        await besiege(storm, load, ((name, cut, 0.3) for name, cut in SHORT))


@pytest.mark.timeout(300)
async def test_a_store_that_stands_still(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """
    A put is under way meanwhile, and executed when its link has been cut; the take beside it is
    woken all the same.
    """
    async with siege(request, tmp_path, 6, short=True, apart=False, synced=False) as (storm, load):
        await asyncio.to_thread(probes.configure, storm.cluster)
        account = Account()
        await Round(storm, load, "r0", storm.cluster.nodes["n0"], STOP, STOP_S).run(
            "put here", account
        )
        assert not account.wrong


def draw(dice: random.Random) -> Iterator[tuple[str, Cut, float]]:
    """
    Every probe with each part of its data link, every way to cut each link, and then any; now and
    then the store stands still.
    """
    first = [*itertools.product(PROBES, [Cut("data", part) for part in PARTS])]
    first += [(dice.choice(list(PROBES)), cut) for cut in CUTS]
    dice.shuffle(first)
    stops = set(dice.sample(range(FAULTS), STOPS))
    for number in range(FAULTS):
        if number in stops:
            yield dice.choice(list(PROBES)), STOP, dice.uniform(5.0, 20.0)
            continue
        name, cut = first.pop() if first else (dice.choice(list(PROBES)), dice.choice(CUTS))
        yield name, cut, dice.uniform(0.1, 3.0)


@pytest.mark.soak
@pytest.mark.timeout(14_400)
async def test_many_links_each_alone(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Three hundred faults, drawn by ``SOAK_SEED``."""
    async with siege(
        request, tmp_path, SEED, short=True, life_s=LIFE_S, apart=False, synced=False
    ) as (storm, load):
        await besiege(storm, load, draw(random.Random(SEED)))
