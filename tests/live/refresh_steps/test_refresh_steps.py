"""
A node is killed, or paused, at each single step of a refresh; others finish it, at servers that
count requests and live grants.

What is expected is the table in docs/testing.md. ``urgent`` accounts have no access token that
lives: nobody waits for the node. ``patient`` ones have, for an hour: others wait for it, and it
comes back.
"""

from __future__ import annotations

import contextlib
import email.utils
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from support.cluster.harness import START_S, Node, until
from support.cluster.mortal import STEPS, MortalCluster, MortalNode
from support.cluster.refresh_stage import (
    KINDS,
    LEASE_SLACK_S,
    ROLLED,
    Dealt,
    Stage,
    listed,
    put,
    refresh_again,
    say_all,
    settled,
    staged,
)

pytestmark = pytest.mark.timeout(400)  # the first run may have to install oidc-provider

SCENES = [step for step in STEPS if step != "torn"]  # Where several accounts can stop side by side.
RACERS = 14  # Accounts of each server that the races use.

ONCE = dict.fromkeys(("grace", "plain", "oidc"), ("fresh", 1))
"""Nothing is sent twice, and the grant lives."""
AGAIN = {"grace": ("fresh", 2), "plain": ("failing", 2), "oidc": ("failing", 2)}
"""
The answer is nowhere: the same refresh token is sent once more, and saves the account within a
grace alone.

Elsewhere it is refused; ten minutes and an hour later it would be sent again before the account is
given up.
"""
HEALED = {"grace": ("fresh", 2), "plain": ("fresh", 2), "oidc": ("failing", 2)}
"""
Likewise; but then the answer comes after all, and saves the account unless its server has ended the
grant for that reuse.
"""
WAITED = ONCE | {"grace": ("fresh", 2)}
"""The others wait for the answer; but not where it is safe to send the token again."""
Outcome = dict[str, tuple[str, int]]
Expected = Mapping[str, Mapping[str, Outcome]]

LOST: dict[str, Outcome] = {"answered": AGAIN, "heard": AGAIN, "torn": AGAIN}
KEPT = ("answered", "heard", "written")
EXPECTED: dict[str, Expected] = {
    "killed": {"urgent": LOST | {"written": HEALED}, "patient": LOST | {"written": WAITED}},
    "killed with the store": {
        "urgent": LOST | {"written": HEALED},
        "patient": LOST | {"written": WAITED},
    },
    "killed, its disk lost": {
        "urgent": LOST | {"written": AGAIN},
        "patient": LOST | {"written": AGAIN},
    },
    "paused": {"urgent": dict.fromkeys(KEPT, HEALED), "patient": dict.fromkeys(KEPT, WAITED)},
}
"""By what becomes of the node, kind of account and step; what is not here is ``ONCE``."""


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


def play(scene: Stage, fate: str) -> None:
    """
    All steps side by side: one node comes to them all, and goes; what becomes of each account is as
    expected.
    """
    nodes, door, servers = scene.nodes, scene.door, scene.servers
    one, *others = nodes.nodes.values()
    dealt = servers.deal(SCENES)
    here = {
        account: step for account, (step, _, _) in dealt.items() if step not in ("sent", "answered")
    }
    door.plan = {token: step for step, _, token in dealt.values() if step in ("sent", "answered")}
    there = set(door.plan)
    one.plan = here
    one.start()
    until(one.ready, START_S, what="the first node serves")
    put(one, dealt)
    until(
        lambda: one.stopped_at_steps() == here.keys() and door.held == there,
        60,
        what="all have come to their steps",
    )
    end(nodes, one, fate)
    begun = time.monotonic()
    door.release()
    for node in others:
        node.start()
    for node in others:
        until(node.ready, START_S, what=f"{node.name} serves")
    urgent = {account for account, (_, kind, _) in dealt.items() if kind == "urgent"}
    until(
        lambda: all(settled(listed(others[0])[account]) for account in urgent),
        60,
        0.2,
        what="the urgent are settled",
    )
    print(f"{fate}: all urgent ones are settled after {time.monotonic() - begun:.1f} s")
    for _ in range(2):  # So that what the node has in hand is of long ago.
        refresh_again(others[0], urgent)
    bring_back(one, fate)
    asked: set[str] = set()

    def all_settled() -> bool:
        rows = listed(others[0])
        wanted = {
            account: EXPECTED[fate][kind].get(step, ONCE)
            for account, (step, kind, _) in dealt.items()
        }
        # One that was lost may yet be saved by what the node has in its journal.
        late = {
            account
            for account in dealt
            if wanted[account] is HEALED and not account.startswith("oidc/")
        }
        left = {account for account in dealt if not settled(rows[account])}
        left |= {account for account in late if rows[account]["state"] != "fresh"}
        # Those that wait for the node are asked about twice a minute; here nobody waits so long.
        waiting = {
            account for account in left - asked if "may hold the answer" in rows[account]["message"]
        }
        say_all(others[0], [("T.REFRESH", account) for account in waiting])
        asked.update(waiting)
        return not left

    until(all_settled, 60, 0.2, what="all are settled")
    print(f"{fate}: all are settled after {time.monotonic() - begun:.1f} s")
    judge(scene, dealt, EXPECTED[fate], fate)


def judge(scene: Stage, dealt: Mapping[str, Dealt], expected: Expected, title: str) -> None:
    """
    Each account is as expected; those that are said to live are refreshed once more, which tells
    the truth.
    """
    node = scene.nodes.alive()[-1]
    with node.client() as client:
        spares = {name: row["spares"] for name, row in client.execute_command("T.STATS").items()}
    # What was used since is not kept: to try it would end the grant.
    assert not any(spares.values()), spares
    stats = {name: counted["accounts"] for name, counted in scene.servers.stats().items()}
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
    # The other servers keep a grant whose only refresh token is gone.
    ended = [
        account
        for account in dealt
        if account.startswith("oidc/") and rows[account]["state"] != "fresh"
    ]
    for name, server in scene.servers.all.items():
        live = server.stats()["live"]
        assert live == len(server.seeds) - (len(ended) if name == "oidc" else 0)
        print(f"{title}: {live} of {len(server.seeds)} grants live at {name}")


@pytest.fixture(scope="module")
def stages(
    request: pytest.FixtureRequest, tmp_path_factory: Any
) -> Iterator[Callable[[bool], Stage]]:
    """
    For the short forms: two servers, and three nodes of which none has started; or the latest that
    were made so.
    """
    servers, accounts = ("grace", "oidc"), len(SCENES) * len(KINDS) + RACERS
    made: list[Stage] = []
    with contextlib.ExitStack() as stack:

        def stage(another: bool) -> Stage:
            if another or not made:
                made.append(
                    stack.enter_context(
                        staged(request, tmp_path_factory.mktemp("steps"), servers, accounts)
                    )
                )
            return made[-1]

        yield stage


@pytest.fixture
def scene(request: pytest.FixtureRequest, stages: Callable[[bool], Stage]) -> Stage:
    """
    The file's, whose nodes the first test starts; another for who is run a second time, as each
    account is used once.
    """
    return stages(getattr(request.node, "execution_count", 1) > 1)


def test_at_each_step_a_node_is_killed(scene: Stage) -> None:
    play(scene, "killed")


@pytest.mark.soak
@pytest.mark.parametrize("fate", EXPECTED)
def test_at_each_step_a_node_goes(
    request: pytest.FixtureRequest, tmp_path: Path, fate: str
) -> None:
    slack_s = LEASE_SLACK_S + 2.5 if fate == "paused" else LEASE_SLACK_S
    with staged(
        request, tmp_path / "nodes", ("grace", "plain", "oidc"), len(SCENES) * len(KINDS), slack_s
    ) as made:
        play(made, fate)


@pytest.mark.soak
def test_a_lone_node_dies_at_each_step_with_its_store(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """
    It kills itself there and then; its embedded store goes in the same moment, and both come back.
    """
    servers = ("grace", "plain", "oidc")
    with staged(
        request, tmp_path / "nodes", servers, len(STEPS), nodes=1, store__url='"embedded"'
    ) as made:
        die_alone(made)


def die_alone(scene: Stage) -> None:
    door, servers = scene.door, scene.servers
    (one,) = scene.nodes.nodes.values()
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
        # It may be gone before it has answered everything.
        with contextlib.suppress(redis.ConnectionError):
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
            lambda dealt=dealt: all(settled(listed(one)[account]) for account in dealt),
            60,
            0.2,
            what="all are settled",
        )
        everything |= dealt
    judge(scene, everything, {"urgent": LOST}, "alone, with its store")


@pytest.fixture
def healed(scene: Stage) -> Stage:
    scene.nodes.heal()
    return scene


def all_fresh(node: Node, accounts: Mapping[str, Dealt], limit_s: float = 40) -> None:
    def fresh() -> bool:
        rows = listed(node)
        return all(
            rows[account]["state"] == "fresh" and rows[account]["generation"] >= 2
            for account in accounts
        )

    until(fresh, limit_s, 0.1, what="all are fresh")


def check_once(
    scene: Stage, before: Mapping[str, Any], accounts: Mapping[str, Dealt], what: str = "requests"
) -> None:
    """
    None of the refresh tokens was presented (or used: ``refreshes``) twice, and every grant lives.
    """
    for name, counted in scene.servers.stats().items():
        assert counted["live"] == before[name]["live"]
        for account in accounts:
            provider, _, user = account.partition("/")
            if provider == name:
                assert set(counted["accounts"][user][what].values()) == {1}, account


def test_all_nodes_are_asked_at_once(healed: Stage) -> None:
    """
    They fall due, each node is told to refresh them, and readers at each want a token that lives
    long.
    """
    nodes = list(healed.nodes.nodes.values())
    dealt, before = healed.servers.deal(["race"] * 2), healed.servers.stats()

    def want(node: Node) -> None:
        reads = [("T.GET", account, "MINTTL", 300_000, "WAIT", 20_000) for account in dealt]
        say_all(node, [*(("T.REFRESH", account) for account in dealt), *reads])

    put(nodes[0], dealt)
    with ThreadPoolExecutor(len(nodes)) as pool:
        list(pool.map(want, nodes))
    all_fresh(nodes[0], dealt)
    check_once(healed, before, dealt)


def test_a_new_grant_comes_while_the_old_is_refreshed(healed: Stage) -> None:
    """
    The answer for the old one finds that the account has moved on: both grants live, and the new
    one is the account's.
    """
    one, other, _ = healed.nodes.nodes.values()
    dealt, before = healed.servers.deal(["put"], ["urgent", "new"]), healed.servers.stats()
    old = {account: row for account, row in dealt.items() if row[1] == "urgent"}
    new = {row: token for row, (_, kind, token) in dealt.items() if kind == "new"}
    healed.door.plan = {token: "answered" for _, _, token in old.values()}
    put(one, old)
    until(
        lambda: len(healed.door.held) == len(old), what="the old grants' answers are on their way"
    )
    for account in old:
        name = account.partition("/")[0]
        token = next(token for each, token in new.items() if each.startswith(f"{name}/"))
        other.say("T.PUT", account, json.dumps({"refresh_token": token}))
    until(
        lambda: all(listed(other)[account]["generation"] == 3 for account in old),
        what="the new grants are refreshed",
    )
    healed.door.release()
    until(lambda: not healed.door.held, what="the old answers have come")
    all_fresh(other, old)
    assert not refresh_again(other, old)
    assert {listed(other)[account]["grant"] for account in old} == {2}
    check_once(healed, before, dealt)


def test_the_secret_is_rolled_while_refreshes_are_under_way(healed: Stage) -> None:
    """
    Some are on their way with the old secret; from then on the server knows the new one alone.
    """
    one, other, _ = healed.nodes.nodes.values()
    before = healed.servers.stats()
    used = {
        account: row
        for account, row in healed.servers.deal(["roll"] * 2).items()
        if account.startswith("oidc/")
    }
    dealt = {f"{ROLLED}/{account.partition('/')[2]}": row for account, row in used.items()}
    first = {account: row for account, row in dealt.items() if row[1] == "urgent"}
    healed.door.plan = {token: "answered" for _, _, token in first.values()}
    put(one, first)
    until(lambda: len(healed.door.held) == len(first), what="some are under way")
    healed.door.rolled = True
    put(other, {account: row for account, row in dealt.items() if account not in first})
    healed.door.release()
    all_fresh(one, dealt)
    assert not refresh_again(one, dealt)
    check_once(healed, before, used)


def test_servers_are_away_busy_and_odd(healed: Stage) -> None:
    """
    No request arrives for a while; then 429 with either form of Retry-After, and a sign-in page in
    place of an answer.
    """
    one, *_ = healed.nodes.nodes.values()
    before = healed.servers.stats()
    troubles: dict[str, dict[str, Any]] = {
        "seconds": {"kind": "status", "status": 429, "retry_after": 1},
        "date": {
            "kind": "status",
            "status": 429,
            "retry_after": email.utils.formatdate(time.time() + 3, usegmt=True),
        },
        "page": {"kind": "html"},
    }
    dealt = healed.servers.deal(["away", *troubles], ["urgent"])

    def of(step: str) -> dict[str, Dealt]:
        return {account: row for account, row in dealt.items() if row[0] == step}

    healed.door.away = True
    put(one, of("away"))
    until(
        lambda: all(listed(one)[account]["tries"] >= 1 for account in of("away")),
        what="the servers are away",
    )
    healed.door.away = False
    all_fresh(one, of("away"))
    for step, fault in troubles.items():
        for server in healed.servers.all.values():
            server.fault(**fault, times=1)
        put(one, of(step))
        all_fresh(one, of(step))
    assert not refresh_again(one, dealt)
    check_once(healed, before, dealt, "refreshes")
