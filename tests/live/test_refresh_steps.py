"""
A node is killed, or paused, at each single step of a refresh; others finish it, at servers that count requests and live grants.

What is expected is the table in docs/testing.md. ``urgent`` accounts have no access token that lives: nobody waits for the node.
``patient`` ones have, for an hour: others wait for it, and it comes back.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from live.gateway import Gateway, gateway
from live.harness import START_S, Node, until
from live.mortal import STEPS, MortalCluster, MortalNode

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]  # the first run may have to install oidc-provider

KINDS = ("urgent", "patient")
SCENES = [step for step in STEPS if step != "torn"]  # Where several accounts can stop side by side.
LIFE_S = 600
GRACE_S = 300
TIMEOUT_S = 2.0
SLACK_S = 7.0  # Of the leases, which would last ten seconds beyond a request; a question to a node and what a request needs fit in.

ONCE = dict.fromkeys(("grace", "plain", "oidc"), ("fresh", 1))
"""Nothing is sent twice, and the grant lives."""
AGAIN = {"grace": ("fresh", 2), "plain": ("lost_rotation", 2), "oidc": ("lost_rotation", 2)}
"""The answer is nowhere: the same refresh token is sent once more, and saves the account within a grace alone."""
HEALED = {"grace": ("fresh", 2), "plain": ("fresh", 2), "oidc": ("lost_rotation", 2)}
"""Likewise; but then the answer comes after all, and saves the account unless its server has ended the grant for that reuse."""
WAITED = ONCE | {"grace": ("fresh", 2)}
"""The others wait for the answer; but not where it is safe to send the token again."""
Outcome = dict[str, tuple[str, int]]
Expected = Mapping[str, Mapping[str, Outcome]]
Dealt = tuple[str, str, str]
"""An account's step and kind, and its refresh token."""

LOST: dict[str, Outcome] = {"answered": AGAIN, "heard": AGAIN, "torn": AGAIN}
KEPT = ("answered", "heard", "written")
EXPECTED: dict[str, Expected] = {
    "killed": {"urgent": LOST | {"written": HEALED}, "patient": LOST | {"written": WAITED}},
    "killed with the store": {"urgent": LOST | {"written": HEALED}, "patient": LOST | {"written": WAITED}},
    "killed, its disk lost": {"urgent": LOST | {"written": AGAIN}, "patient": LOST | {"written": AGAIN}},
    "paused": {"urgent": dict.fromkeys(KEPT, HEALED), "patient": dict.fromkeys(KEPT, WAITED)},
}
"""By what becomes of the node, kind of account and step; what is not here is ``ONCE``."""


class Servers:
    """The authorization servers of a scene, each account of which is used once. ``names``: which of them."""

    def __init__(self, request: pytest.FixtureRequest, names: tuple[str, ...], accounts: int) -> None:
        self.all: dict[str, Any] = {}
        for name in names:
            if name == "oidc":
                self.all[name] = request.getfixturevalue("oidc")(accounts=accounts, life=LIFE_S)
            else:
                grace_s = GRACE_S if name == "grace" else 0
                self.all[name] = request.getfixturevalue("dot")(accounts=accounts, grace=grace_s, life=LIFE_S)
        self._used = 0

    def deal(self, steps: Sequence[str], kinds: Sequence[str] = KINDS) -> dict[str, Dealt]:
        """Fresh accounts, one of each kind for each step at each server."""
        dealt = {}
        begun = self._used
        self._used += len(steps) * len(kinds)
        for name, server in self.all.items():
            seeds = iter(server.seeds[begun : self._used])
            for step in steps:
                for kind in kinds:
                    account, token = next(seeds)
                    dealt[f"{name}/{account}"] = (step, kind, token)
        return dealt

    def toml(self, door: Gateway) -> str:
        lines = []
        for name, server in self.all.items():
            lines += [
                f"[providers.{name}]",
                f'token_url = "{door.url}/{name}/token"',
                f'client_id = "{server.client_id}"',
                f'client_secret = "{server.client_secret}"',
                f"grace_s = {GRACE_S if name == 'grace' else 0}",
                f"timeout_s = {TIMEOUT_S}",
                "refreshers = 40",
            ]
        return "\n".join([*lines, ""])


def listed(node: Node) -> dict[str, dict[str, Any]]:
    """T.LIST, by account."""
    found, cursor = {}, ""
    with node.client() as client:
        while True:
            rows, cursor = client.execute_command("T.LIST", "COUNT", 500, *(["AFTER", cursor] if cursor else []))
            for row in rows:
                row = row if isinstance(row, dict) else dict(zip(row[::2], row[1::2], strict=True))
                found[row["account"]] = row
            if not cursor:
                return found


def say_all(node: Node, commands: list[tuple[Any, ...]]) -> None:
    with node.client() as client:
        pipeline = client.pipeline(transaction=False)
        for words in commands:
            pipeline.execute_command(*words)
        pipeline.execute()


def put(node: Node, dealt: Mapping[str, Dealt]) -> None:
    """Every account, all of them due at once."""
    commands: list[tuple[Any, ...]] = []
    for account, (_, kind, token) in dealt.items():
        fields: dict[str, Any] = {"refresh_token": token}
        if kind == "patient":
            fields |= {"access_token": "old", "expires_in": 3600}
        commands += [("T.PUT", account, json.dumps(fields)), ("T.REFRESH", account)]
    say_all(node, commands)


def settled(row: Mapping[str, Any]) -> bool:
    """Whether no more comes of it: it was refreshed, or refused."""
    refused = row["error"] == "invalid_grant" or row["state"] in ("dead", "lost_rotation")
    return refused or (row["generation"] >= 2 and row["state"] == "fresh")


def refresh_again(node: Node, accounts: Iterable[str], limit_s: float = 30) -> set[str]:
    """Have those that are fresh refreshed once more, which shows whether their grants live; those that were refused."""
    before = {account: row for account, row in listed(node).items() if account in accounts and row["state"] == "fresh"}
    say_all(node, [("T.REFRESH", account) for account in before])

    def tried() -> bool:
        rows = listed(node)
        return all(
            rows[account]["generation"] > row["generation"] or rows[account]["error"] for account, row in before.items()
        )

    until(tried, limit_s, 0.1, what="all that are fresh are refreshed once more")
    rows = listed(node)
    return {account for account in before if rows[account]["error"]}


def end(nodes: MortalCluster, one: MortalNode, fate: str) -> None:
    """What becomes of the node whose refreshes have stopped at their steps."""
    if fate == "paused":
        one.freeze()
        return
    one.kill()
    if fate == "killed with the store":
        nodes.valkey.kill()
        nodes.valkey.start()
    if fate == "killed, its disk lost":
        for path in one.folder.iterdir():
            if path != one.config:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def bring_back(one: MortalNode, fate: str) -> None:
    if fate == "paused":
        one.go()
        one.thaw()
    else:
        one.start()
        until(one.ready, START_S, what=f"{one.name} serves again")


def play(nodes: MortalCluster, door: Gateway, servers: Servers, fate: str) -> None:
    """All steps side by side: one node comes to them all, and goes; what becomes of each account is as expected."""
    one, *others = nodes.nodes.values()
    dealt = servers.deal(SCENES)
    here = {account: step for account, (step, _, _) in dealt.items() if step not in ("sent", "answered")}
    door.plan = {token: step for step, _, token in dealt.values() if step in ("sent", "answered")}
    there = set(door.plan)
    one.plan = here
    one.start()
    until(one.ready, START_S, what="the first node serves")
    put(one, dealt)
    until(lambda: one.stopped_at_steps() == here.keys() and door.held == there, 60, what="all have come to their steps")
    end(nodes, one, fate)
    begun = time.monotonic()
    door.release()
    for node in others:
        node.start()
    for node in others:
        until(node.ready, START_S, what=f"{node.name} serves")
    urgent = {account for account, (_, kind, _) in dealt.items() if kind == "urgent"}
    until(
        lambda: all(settled(listed(others[0])[account]) for account in urgent), 60, 0.2, what="the urgent are settled"
    )
    print(f"{fate}: all urgent ones are settled after {time.monotonic() - begun:.1f} s")
    for _ in range(2):  # So that what the node has in hand is of long ago.
        refresh_again(others[0], urgent)
    bring_back(one, fate)
    asked: set[str] = set()

    def all_settled() -> bool:
        rows = listed(others[0])
        wanted = {account: EXPECTED[fate][kind].get(step, ONCE) for account, (step, kind, _) in dealt.items()}
        # One that was lost may yet be saved by what the node has in its journal.
        late = {account for account in dealt if wanted[account] is HEALED and not account.startswith("oidc/")}
        left = {account for account in dealt if not settled(rows[account])}
        left |= {account for account in late if rows[account]["state"] != "fresh"}
        # Those that wait for the node are asked about twice a minute; here nobody waits so long.
        waiting = {account for account in left - asked if "may hold the answer" in rows[account]["message"]}
        say_all(others[0], [("T.REFRESH", account) for account in waiting])
        asked.update(waiting)
        return not left

    until(all_settled, 60, 0.2, what="all are settled")
    print(f"{fate}: all are settled after {time.monotonic() - begun:.1f} s")
    judge(nodes, servers, dealt, EXPECTED[fate], fate)


def judge(nodes: MortalCluster, servers: Servers, dealt: Mapping[str, Dealt], expected: Expected, title: str) -> None:
    """Each account is as expected; those that are said to live are refreshed once more, which tells the truth."""
    node = nodes.alive()[-1]
    stats = {name: server.stats()["accounts"] for name, server in servers.all.items()}
    revoked = refresh_again(node, dealt)
    rows = listed(node)
    wrong = []
    for account, (step, kind, _) in dealt.items():
        name, _, user = account.partition("/")
        found = rows[account]["state"], int(stats[name][user]["requests"].get("0", 0))
        if account in revoked:
            found = "revoked", found[1]
        wanted = expected[kind].get(step, ONCE)[name]
        print(f"{title:24} {kind:8} {step:9} {account:10} {found[0]} {found[1]}")
        if found != wanted:
            wrong.append(f"{account} ({kind}, {step}): {found}, not {wanted}: {rows[account]}")
    assert not wrong, "\n".join(wrong)
    with node.client() as client:
        spares = {name: row["spares"] for name, row in client.execute_command("T.STATS").items()}
    assert not any(spares.values()), spares  # What was used since is not kept: to try it would end the grant.


@pytest.fixture
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """``stage(names, accounts)``: servers, the gateway before them, and a cluster of which no node has started."""
    with contextlib.ExitStack() as stack:

        def make(*names: str, accounts: int, **options: Any) -> tuple[MortalCluster, Gateway, Servers]:
            servers = Servers(request, names, accounts)
            door = stack.enter_context(gateway(servers.all))
            nodes = MortalCluster(tmp_path / "nodes", extra=servers.toml(door), **options)
            for node in nodes.nodes.values():
                node.lease_slack_s = SLACK_S
            stack.callback(lambda: nodes.close(show=True))
            return nodes, door, servers

        yield make


@pytest.mark.soak
@pytest.mark.parametrize("fate", EXPECTED)
def test_at_each_step_a_node_goes(stage: Callable[..., Any], fate: str) -> None:
    nodes, door, servers = stage("grace", "plain", "oidc", accounts=len(SCENES) * len(KINDS))
    play(nodes, door, servers, fate)


@pytest.mark.soak
def test_a_lone_node_dies_at_each_step_with_its_store(stage: Callable[..., Any]) -> None:
    """It kills itself there and then; its embedded store goes in the same moment, and both come back."""
    nodes, door, servers = stage("grace", "plain", "oidc", accounts=len(STEPS), nodes=1, store__url='"embedded"')
    (one,) = nodes.nodes.values()
    everything: dict[str, Dealt] = {}
    for step in STEPS:
        dealt = servers.deal([step], ["urgent"])
        if step in ("sent", "answered"):
            door.plan = {token: step for _, _, token in dealt.values()}
        else:
            one.plan, one.suicide = dict.fromkeys(dealt, step), True
        if one.running:  # Its next start has the plan.
            one.kill()
        one.start()
        until(one.ready, START_S, what="it serves")
        with contextlib.suppress(redis.ConnectionError):  # It may be gone before it has answered everything.
            put(one, dealt)
        if step in ("sent", "answered"):
            until(lambda dealt=dealt: len(door.held) == len(dealt), 60, what="all are held")
            one.kill()
            door.release()
        else:
            until(lambda: not one.running, 60, what="it has killed itself")
        one.start()
        until(one.ready, START_S, what="it serves again")
        until(
            lambda dealt=dealt: all(settled(listed(one)[account]) for account in dealt), 60, 0.2, what="all are settled"
        )
        everything |= dealt
    judge(nodes, servers, everything, {"urgent": LOST}, "alone, with its store")
