"""
Processes of a cluster that stand still for a moment, as on a host that swaps or is moved while it
lives, under clients that put, take and ack at every node.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import redis
from support.cluster.harness import LIMIT_S, START_S, Node, until
from support.cluster.node_processes import processes
from support.cluster.processes import TROUBLE
from support.cluster.several import all_in_sync

QUEUE = "stalled"
LENGTHS_S = (0.3, 1.0, 3.0)
APART_S = (0.05, 0.8)
"""Between the end of a stall and the next."""
PAUSE_S = 0.01
"""Of a client after each round."""


class Worker:
    """Puts, takes and acks at one node; what it was answered is written down."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.put: set[str] = set()
        self.acked: set[str] = set()
        """What it was given, and said to be done."""
        self.errors: Counter[str] = Counter()
        self.gap_s = 0.0
        """The longest between two puts that were acknowledged."""
        self._put_s = time.monotonic()

    def run(self, over: threading.Event) -> None:
        """Go on until it is over, on a new connection after each error."""
        number = 0
        while not over.is_set():
            try:
                with self._node.client() as client:
                    while not over.is_set():
                        number += 1
                        self._round(client, f"{self._node.name}.{number}")
                        time.sleep(PAUSE_S)
            except TROUBLE as error:
                self.errors[str(error).partition(" ")[0]] += 1
                time.sleep(PAUSE_S)

    def _round(self, client: redis.Redis, name: str) -> None:
        say = client.execute_command
        say("Q.PUT", QUEUE, "x", "ID", name)
        self.put.add(name)
        now_s = time.monotonic()
        self.gap_s, self._put_s = max(self.gap_s, now_s - self._put_s), now_s
        for _, task_id, lease, *_ in say("Q.TAKE", "FROM", QUEUE):
            self.acked.add(task_id)  # though its answer may be lost: then it was perhaps done
            say("Q.ACK", QUEUE, task_id, lease)


@dataclass
class Account:
    """What was done, and what became of it."""

    stalls: Counter[tuple[str, float]] = field(default_factory=Counter)
    """By what stood still, and for how long."""
    workers: list[Worker] = field(default_factory=list)

    def table(self) -> str:
        """What a reader wants to know, a line each."""
        rows = [
            f"{what:7} {length_s:4g} s: {times} times"
            for (what, length_s), times in sorted(self.stalls.items())
        ]
        puts = sum(len(worker.put) for worker in self.workers)
        gap_s = max(worker.gap_s for worker in self.workers)
        errors = sum((worker.errors for worker in self.workers), Counter[str]())
        return "\n".join(
            [
                *rows,
                f"{self.stalls.total()} stalls, no process ended; {puts} puts acknowledged, none"
                f" lost; the longest gap between two at a node {gap_s:.1f} s; errors {dict(errors)}",
            ]
        )


@contextmanager
def working(nodes: list[Node]) -> Iterator[list[Worker]]:
    """A client at each node, until the block is left."""
    over = threading.Event()
    workers = [Worker(node) for node in nodes]
    threads = [threading.Thread(target=worker.run, args=(over,)) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        yield workers
    finally:
        over.set()
        for thread in threads:
            thread.join(LIMIT_S)


def store_pids(nodes: dict[str, Node]) -> dict[str, int]:
    """The processes of the stores, by the node whose they are."""
    all_in_sync(nodes)
    return {name: int(node.status()["store_pid"]) for name, node in nodes.items()}


def further_pids(nodes: dict[str, Node]) -> dict[str, list[int]]:
    """The further processes of nodes that have some, by the node whose they are."""
    found = {name: [one["pid"] for one in processes(node)] for name, node in nodes.items()}
    return {name: pids for name, pids in found.items() if pids}


def stalled(nodes: dict[str, Node], times: int, seed: int, say: Callable[[str], None]) -> Account:
    """
    Have processes stand still so many times, under load; then all is whole again.

    Fails where a process has ended, something acknowledged is lost, a node logged a defect, or the
    cluster does not come back by itself.
    """
    dice, account = random.Random(seed), Account()
    stores, further = store_pids(nodes), further_pids(nodes)
    kinds = ("node", "store", "host", *(("further",) if further else ()))
    with working(list(nodes.values())) as workers:
        account.workers = workers
        for _ in range(times):
            name, length_s = dice.choice(list(nodes)), dice.choice(LENGTHS_S)
            what = dice.choice(kinds)
            pids = {
                "node": [nodes[name].pid],
                "store": [stores[name]],
                "further": further.get(name, []),
            }
            _stop(pids.get(what) or [*itertools.chain(*pids.values())], length_s)
            account.stalls[what, length_s] += 1
            say(f"{name}'s {what} stood still for {length_s:g} s")
            ended = [one for one, node in nodes.items() if not node.running]
            assert not ended, f"ended: {ended}\n{nodes[ended[0]].output.read_text()[-3000:]}"
            time.sleep(dice.uniform(*APART_S))
        for worker in workers:  # each gets on again, at its node
            known = len(worker.put)
            until(lambda worker=worker, known=known: len(worker.put) > known + 5, START_S)
    assert store_pids(nodes) == stores, "a store has ended"
    assert further_pids(nodes) == further, "a further process has ended"
    _judge(nodes, workers)
    return account


def _stop(pids: list[int], length_s: float) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(length_s)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def _judge(nodes: dict[str, Node], workers: list[Worker]) -> None:
    """Every put that was acknowledged was acked, or is still there; no node logged a defect."""
    acked = set().union(*(worker.acked for worker in workers))
    waiting = set().union(*(worker.put for worker in workers)) - acked
    one = next(iter(nodes.values()))
    with one.client() as client:
        lost = [name for name in waiting if not _known(client, name)]
    assert not lost, f"{len(lost)} acknowledged puts are lost: {sorted(lost)[:10]}"
    for node in nodes.values():
        told = [line for line in node.messages() if "for a reason of ours" in line]
        assert not told, told[:3]
        assert '"trace"' not in node.log(), node.name


def _known(client: redis.Redis, name: str) -> bool:
    try:
        return bool(client.execute_command("Q.PEEK", QUEUE, name))
    except redis.ResponseError as error:
        if not str(error).startswith("NOTFOUND"):
            raise
        return False
