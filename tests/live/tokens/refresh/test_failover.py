"""
The leader is paused, and killed, while tokens fall due and refreshes are under way, at servers that
count everything.
"""

from __future__ import annotations

import json
import shutil
import struct
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.cluster import refresh_stage
from support.cluster.harness import CLUSTER, Cluster, Node, cluster, until
from support.providers.provider_settings import section
from support.providers.sandbox_process import SandboxProcess

# The first run may have to install oidc-provider.
pytestmark = pytest.mark.timeout(400)

REFRESHERS = 4
LIFE_S = 40
GRACE_S = 90
SLOW_MS = 2000
BUSY_S = 6.0  # within so long, if at all, what was put is seen under way
PAUSE_S = 11.0  # longer than a refresh may take, shorter than its intent lasts
# far above SLOW_MS, also of a server on a starved machine; a refresh's intent lasts 10 s longer
TIMEOUT_S = 10.0


def ended(row: Mapping[str, Any]) -> bool:
    """
    Whether its grant was refused: it is reported, and asked about twice more before it is given up.
    """
    return row["error"] in ("invalid_grant", "lost_rotation")


INTENT = struct.Struct(">II6s6s8sQ")  # what stands before the holder in an intent


@dataclass
class Authority:
    """
    One authorization server under test. ``grace_s``: how long a used refresh token gets the same
    pair again.
    """

    name: str
    server: Any
    accounts: int
    grace_s: int = 0

    def toml(self) -> str:
        settings = {"rotation": "single_use", "timeout_s": TIMEOUT_S, "refreshers": REFRESHERS}
        return section(self.name, self.server, grace_s=self.grace_s, **settings)

    @property
    def queue(self) -> str:
        return f"_tokens:{self.name}:{self.server.client_id}"

    def presented(self) -> Counter[tuple[str, int]]:
        """
        How often each refresh token was presented, by account and generation as the server counts
        them.
        """
        found: Counter[tuple[str, int]] = Counter()
        for account, row in self.server.stats()["accounts"].items():
            for generation, times in row["requests"].items():
                found[account, int(generation)] = times
        return found


@pytest.fixture
def authorities(
    request: pytest.FixtureRequest, dot: Any, tmp_path: Path
) -> Iterator[dict[str, Authority]]:
    """
    django-oauth-toolkit with grace and our sandbox without; oidc-provider, without, where node is
    present.
    """
    sandbox = SandboxProcess(tmp_path / "sandbox", 40, LIFE_S)
    found = {
        "dot": Authority("dot", dot(accounts=60, grace=GRACE_S, life=LIFE_S), 60, GRACE_S),
        "sandbox": Authority("sandbox", sandbox, 40),
    }
    if shutil.which("node") and shutil.which("npm"):
        try:
            found["oidc"] = Authority(
                "oidc", request.getfixturevalue("oidc")(accounts=30, life=LIFE_S), 30
            )
        except pytest.skip.Exception as missing:
            print(f"without oidc-provider: {missing}")
    yield found
    sandbox.stop()


def intents(nodes: Cluster, authority: Authority, holder: str) -> set[str]:
    """
    The accounts whose open intent is this holder's: its request is under way, or will be, or nobody
    knows.
    """
    with nodes.valkey.client() as store:
        rows = store.hgetall(f"{{{CLUSTER}:{authority.queue}:0}}:account_intents")
    return {
        account.decode() for account, raw in rows.items() if raw[INTENT.size :].decode() == holder
    }


def listed(node: Node, provider: str, state: str = "") -> dict[str, dict[str, Any]]:
    """Its accounts, by their names there."""
    found = refresh_stage.listed(node, "PROVIDER", provider, *(("STATE", state) if state else ()))
    return {account.partition("/")[2]: row for account, row in found.items()}


def put_accounts(node: Node, authorities: Mapping[str, Authority], part: int) -> None:
    """
    Half of the accounts, each with an access token that ends within seconds, so that they fall due
    one after the other.
    """
    begun = time.monotonic()
    with node.client() as client:
        pipeline = client.pipeline(transaction=False)
        now_ms = int(time.time() * 1000)
        for authority in authorities.values():
            for number, (account, token) in enumerate(authority.server.seeds[part::2]):
                ends_ms = now_ms + 1500 + 6000 * number // authority.accounts
                fields = {
                    "refresh_token": token,
                    "access_token": f"old-{account}",
                    "expires_at_ms": ends_ms,
                }
                pipeline.execute_command("T.PUT", f"{authority.name}/{account}", json.dumps(fields))
        generations = pipeline.execute()
    assert set(generations) == {1}
    print(f"{len(generations)} accounts put in {time.monotonic() - begun:.2f} s")


def slow(authorities: Mapping[str, Authority], delay_ms: int) -> None:
    """Every token request takes so long from now on; 0: as usual."""
    for authority in authorities.values():
        authority.server.fault("delay" if delay_ms else "", delay_ms=delay_ms)


def stop_busy(
    nodes: Cluster, leader: Node, authorities: Mapping[str, Authority], part: int
) -> dict[str, set[str]]:
    """
    Put accounts and stop the leader when it has refreshes under way at every provider: which they
    are.
    """
    holder: str = leader.status()["holder"]
    slow(authorities, SLOW_MS)
    put_accounts(leader, authorities, part)

    def busy(least: int) -> dict[str, set[str]]:
        found = {name: intents(nodes, authority, holder) for name, authority in authorities.items()}
        return found if min(map(len, found.values())) >= least else {}

    for _ in range(10):
        end = time.monotonic() + BUSY_S
        while time.monotonic() < end and not busy(2):
            time.sleep(0.02)
        leader.freeze()
        if under_way := busy(1):
            return under_way
        # a starved machine: all was over before it was seen, or before it stood still
        leader.thaw()
        with leader.client() as client:
            for name, authority in authorities.items():
                for account, _ in authority.server.seeds[part::2]:
                    client.execute_command("T.REFRESH", f"{name}/{account}")
    pytest.fail("the leader was never found with refreshes of every provider under way")


def unsettled(node: Node, authorities: Mapping[str, Authority]) -> list[str]:
    """The accounts that are neither refreshed nor reported dead."""
    return [
        f"{name}/{account} {row['state']} generation {row['generation']}"
        for name in authorities
        for account, row in listed(node, name).items()
        if row["generation"] < 2 and not ended(row)
    ]


def check_one(nodes: Cluster, authority: Authority, under_way: set[str]) -> None:
    """
    What became of one provider's accounts; ``under_way``: those that the killed node was
    refreshing.
    """
    name = authority.name
    rows = listed(nodes.alive()[0], name)
    assert len(rows) == authority.accounts
    dead = {account: row for account, row in rows.items() if ended(row)}
    again = {key: times for key, times in authority.presented().items() if times > 1}
    stats = authority.server.stats()
    print(
        f"{name}: {stats['requests']} requests for {authority.accounts} accounts; under way at the"
        f" kill {len(under_way)}; presented again {again}; {stats['live']} grants live; dead here:"
        f" {sorted(dead)}"
    )
    assert len(under_way) <= REFRESHERS
    assert {account for account, _ in again} <= under_way, (
        "only what the killed node had under way is sent again"
    )
    assert set(again.values()) <= {2}, "and each at most once more"
    assert all(row["generation"] >= 2 for account, row in rows.items() if account not in dead)
    if authority.grace_s:
        assert not dead
        assert stats["live"] == authority.accounts, "every grant lives on"
        return
    assert dead.keys() <= under_way
    assert stats["live"] == authority.accounts - len(dead), (
        "those lost are reported, none is hidden"
    )
    assert dead.keys() == listed(nodes.alive()[0], name, "failing").keys()


def test_refreshes_outlive_their_leader(
    request: pytest.FixtureRequest, authorities: dict[str, Authority], tmp_path: Path
) -> None:
    """
    First it is paused for longer than a refresh may take; then, with other refreshes under way, it
    is killed.
    """
    extra = "".join(authority.toml() for authority in authorities.values())
    with cluster(request, tmp_path / "nodes", extra=extra) as nodes:
        pause_the_leader(nodes, authorities)
        kill_the_leader(nodes, authorities)
        check_readers(nodes, authorities)


def pause_the_leader(nodes: Cluster, authorities: Mapping[str, Authority]) -> None:
    """
    The answers lie in its sockets when it wakes: none is thrown away, so nothing is sent twice,
    even without grace.
    """
    old = nodes.leader()
    under_way = stop_busy(nodes, old, authorities, 0)
    print(f"{old.name} paused for {PAUSE_S} s with {under_way} under way")
    time.sleep(PAUSE_S)
    slow(authorities, 0)
    old.thaw()
    thawed = time.monotonic()
    until(lambda: not unsettled(old, authorities), 90, 0.2, what="every account is refreshed")
    print(f"every account is refreshed {time.monotonic() - thawed:.1f} s after it woke")
    for name, authority in authorities.items():
        again = {key for key, times in authority.presented().items() if times > 1}
        assert not again, f"{name}: presented again"
        assert not listed(old, name, "failing")
        assert authority.server.stats()["live"] == authority.accounts


def kill_the_leader(nodes: Cluster, authorities: Mapping[str, Authority]) -> None:
    """
    What it had under way is sent once more, by others; where there is no grace that ends the grant,
    and is reported.
    """
    old = nodes.leader()
    before = int(old.status()["epoch"])
    under_way = stop_busy(nodes, old, authorities, 1)
    old.kill()
    killed = time.monotonic()
    print(f"{old.name} killed with {under_way} under way")
    new, epoch = until(lambda: nodes.sweeper(before), what="another leads")
    print(f"{new.name} sweeps under epoch {epoch} after {time.monotonic() - killed:.2f} s")
    slow(authorities, 0)
    held_up = sum(map(len, under_way.values()))
    until(
        lambda: len(unsettled(new, authorities)) <= held_up,
        60,
        0.1,
        what="the others are refreshed",
    )
    print(f"all but {held_up} are refreshed {time.monotonic() - killed:.1f} s after the kill")
    until(
        lambda: not unsettled(new, authorities),
        90,
        0.2,
        what="every account is refreshed, or reported",
    )
    print(f"all are refreshed or reported {time.monotonic() - killed:.1f} s after the kill")
    for name, authority in authorities.items():
        check_one(nodes, authority, under_way[name])
    lost = sum(int(node.metric("tidewarden_tokens_lost_rotations_total")) for node in nodes.alive())
    assert lost == 0, "nobody is given up for one refusal"


def check_readers(nodes: Cluster, authorities: Mapping[str, Authority]) -> None:
    """
    Every account that is not dead hands out a token which is not the old one; a dead one says why,
    once its last access token has ended.
    """
    for name in authorities:
        for account, row in listed(nodes.alive()[0], name).items():
            path = f"/v1/tokens/{name}/{account}"
            if ended(row):

                def refused(path: str = path) -> str:
                    found = nodes.alive()[-1].http(path)
                    assert found.status_code in (200, 504), found.text
                    return found.text if found.status_code == 504 else ""

                assert "invalid_grant" in until(refused, 90, what=f"{account} has no token left")
            else:
                found = nodes.alive()[-1].http(path)
                assert found.status_code == 200, found.text
                assert not found.json()["access_token"].startswith("old-")
