"""The live view, rendered from recorded statuses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from tidewarden.cli.up.live_view import (
    NodeRow,
    ShownEvent,
    ViewSnapshot,
    by_time_left,
    leader_of,
    render,
)


def status(name: str, role: str, epoch: int) -> dict[str, Any]:
    return {"node": name, "role": role, "leader": "n1", "epoch": epoch, "quorum": True, "view": 2}


NODES = [
    NodeRow("n0", "127.0.0.1", 7420, 100, "serves", 0, status("n0", "follower", 7)),
    NodeRow("n1", "127.0.0.1", 7430, 101, "serves", 2, status("n1", "leader", 7)),
    NodeRow("n2", "127.0.0.1", 7440, None, "down", 0, status("n2", "leader", 6)),
]
SNAPSHOT = ViewSnapshot(
    nodes=NODES,
    tokens={
        "sandbox": {
            "total": 2000,
            "fresh": 1990,
            "expiring": 9,
            "late": 1,
            "failing": 0,
            "dead": 0,
            "intents": 3,
        },
        "other": {"total": 5, "fresh": 5, "expiring": 0, "late": 0, "failing": 0, "dead": 0},
    },
    left={"expired": 1, "< 10 s": 0, "< 2 min": 999},
    refreshes_per_s=21.5,
    refreshes_total=12_345,
    events=[ShownEvent("12:00:00", "n0", f"event {number}") for number in range(50)],
    up_s=3725,
    data_dir="my data",
    program="bin/tidewarden",
    store="valkey-server, pid 9, view 2, /x/s",
    sandbox_url="http://127.0.0.1:7510",
)


def drawn(snapshot: ViewSnapshot, columns: int = 120, rows: int = 40) -> Sequence[str]:
    console = Console(width=columns, height=rows, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(render(snapshot, rows, columns))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_figures_that_nobody_tells_any_more_are_said_to_be_old() -> None:
    told = next(
        line for line in drawn(replace(SNAPSHOT, told_s=12.4)) if line.startswith("tokens  2,005")
    )
    assert "12 s ago: no node tells just now" in told
    assert "refreshes/s" not in told
    assert any("21.5 refreshes/s" in line for line in drawn(replace(SNAPSHOT, told_s=3.0)))


def test_the_screen_says_who_leads_and_how_to_kill_it() -> None:
    lines = drawn(SNAPSHOT)
    assert lines[0] == "Tidewarden  n1 leads, epoch 7   up 1:02:05   Ctrl-C stops all of it"
    assert "n1    leader        7  101  serves  127.0.0.1:7430  127.0.0.1:7431         2" in lines
    assert "n2    -             -    -  down    127.0.0.1:7440  127.0.0.1:7441" in lines
    assert "kill the leader  kill -9 101" in lines
    assert "who leads        bin/tidewarden status --data-dir 'my data'" in lines
    assert any(
        "redis-cli -p 7420 --user admin --pass \"$(cat 'my data/secrets/admin.secret')\"" in line
        for line in lines
    )


STORES = {
    "n0": {"store": {"role": "member", "sync": None}},
    "n1": {"store": {"role": "primary", "sync": None}},
    "n2": {"store": {"role": "learner", "sync": 0.25}},
}
OWN = [
    replace(
        node,
        own_store=True,
        store_pid=200 + number,
        status=node.status | {"primary": "n1", "in_sync": "n0 n1", "members": STORES},
    )
    for number, node in enumerate(NODES)
]


def test_where_each_node_has_a_store_the_screen_says_how_each_is() -> None:
    lines = drawn(replace(SNAPSHOT, nodes=OWN), 160)
    assert lines[0].startswith("Tidewarden  n1 leads, epoch 7  n1 is the primary, view 2   up ")
    shown = {line[:2]: line.split() for line in lines if line.startswith(("n0 ", "n1 ", "n2 "))}
    assert shown["n0"][4:8] == ["serves", "in", "sync", "200"]
    assert shown["n1"][4:7] == ["serves", "primary", "201"]
    assert shown["n2"][4:8] == ["down", "copies", "25%", "202"]
    assert any(
        line.startswith("kill a host      kill -9 101 201   (node and store of n1, the primary)")
        for line in lines
    )
    down = [replace(node, store_pid=None) for node in OWN]
    lines = drawn(replace(SNAPSHOT, nodes=down), 160)
    assert "kill a host      no primary just now" in lines
    assert [line.split()[5] for line in lines if line.startswith(("n0 ", "n1 ", "n2 "))] == [
        "down"
    ] * 3
    away = STORES | {"n0": {"store": {"role": "away"}}, "n2": {"store": {"role": "learner"}}}
    told = [replace(node, status=node.status | {"members": away}) for node in OWN]
    lines = drawn(replace(SNAPSHOT, nodes=told), 160)
    assert [line.split()[5] for line in lines if line.startswith(("n0 ", "n2 "))] == [
        "away",
        "catches",
    ]


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_stores_have_room_on_a_narrow_terminal(columns: int) -> None:
    lines = drawn(replace(SNAPSHOT, nodes=OWN), columns, 24)
    assert len(lines) == 24
    assert max(len(line) for line in lines) <= columns
    (first,) = (line for line in lines if line.startswith("n1 "))
    assert {"leader", "101", "serves", "primary", "201"} <= set(first.split())
    assert any(line.startswith("kill a host      kill -9 101 201") for line in lines)


def test_one_store_for_all_has_no_columns() -> None:
    text = "\n".join(drawn(SNAPSHOT, 160))
    assert "store pid" not in text
    assert "kill a host" not in text


def test_what_is_to_be_copied_fits_into_120_columns() -> None:
    usual = replace(SNAPSHOT, data_dir="tidewarden-data", program=".venv/bin/tidewarden")
    lines = drawn(usual)
    assert "who leads        .venv/bin/tidewarden status" in lines
    command = (
        'curl --oauth2-bearer "admin:$(cat tidewarden-data/secrets/admin.secret)"'
        " http://127.0.0.1:7420/metrics"
    )
    assert f"metrics          {command.replace('7420', '7421')}" in lines
    narrow = drawn(usual, 80, 24)
    assert f"dead           0  {'·' * 30}  grant lost, new consent needed" in narrow
    assert f"stopped        0  {'·' * 30}  given up asking: token refresh" in narrow
    assert f"failing        0  {'·' * 30}  provider refuses or errs" in narrow


def test_the_screen_shows_tokens_by_state_and_time_left() -> None:
    lines = drawn(SNAPSHOT)
    assert "tokens  2,005   21.5 refreshes/s   12,345 refreshed so far   1 late" in lines
    assert f"fresh      1,995  {'█' * 30}  refresh not yet due" in lines
    assert f"late           1  █{'·' * 29}  expired before its refresh" in lines
    assert "time left (of 1,000 looked at)   expired: 1   < 2 min: 999" in lines


def test_providers_in_trouble_stand_below_the_tokens() -> None:
    down = {
        "total": 5,
        "failing": 5,
        "state": "silent",
        "since_ms": 1_700_000_000_000,
        "next_ms": 0,
        "message": "no connection",
    }
    lines = drawn(
        replace(
            SNAPSHOT,
            tokens=SNAPSHOT.tokens | {"bank": down, "other": {"total": 1, "state": "answers"}},
        )
    )
    (line,) = (line for line in lines if line.startswith("bank "))
    assert re.fullmatch(r"bank is silent since \d\d:13:20, next try when due: no connection", line)
    many = {f"p{number}": down | {"failing": number} for number in range(9)}
    lines = drawn(replace(SNAPSHOT, tokens=many), 80, 24)
    assert [line.split()[0] for line in lines if " is silent " in line] == ["p8", "p7", "p6", "p5"]
    assert "5 more: tidewarden token stats, token why PROVIDER" in lines
    quarantined = {"p": {"total": 3, "state": "answers", "quarantined_since_ms": 1_700_000_000_000}}
    (line,) = (
        one for one in drawn(replace(SNAPSHOT, tokens=quarantined)) if one.startswith("p is")
    )
    assert re.fullmatch(r"p is in quarantine since \d\d:13:20: no refusal counts, .*", line)
    assert len(lines) <= 24


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (120, 40), (200, 60)])
def test_the_screen_fits_and_the_newest_event_is_last(columns: int, rows: int) -> None:
    lines = drawn(SNAPSHOT, columns, rows)
    assert len(lines) <= rows
    assert max(len(line) for line in lines) <= columns
    assert lines[-1] == "12:00:00 n0      event 49"
    assert len(lines) == rows


@pytest.mark.parametrize("columns", [44, 60, 73, 79])
def test_a_narrow_terminal_leaves_out_what_can_be_done_without(columns: int) -> None:
    """Whole words: who leads, its pid, how each node is, how many tokens are how."""
    lines = drawn(SNAPSHOT, columns, 24)
    assert len(lines) == 24
    assert max(len(line) for line in lines) <= columns
    (leader,) = (line for line in lines if line.startswith("n1    leader"))
    assert leader.split()[:2] == ["n1", "leader"]
    assert "101" in leader.split()
    assert "serves" in leader.split()
    assert not any(
        "…" in line for line in lines if line.startswith(("node", "n0 ", "n1 ", "n2 ", "tokens"))
    )
    assert any(re.match(r"late           1  █·{9,28}  expired b", line) for line in lines)


def test_an_ipv6_address_stands_in_brackets() -> None:
    six = [replace(node, host="::1") for node in NODES]
    lines = drawn(replace(SNAPSHOT, nodes=six))
    assert any("[::1]:7430" in line and "[::1]:7431" in line for line in lines)
    assert any("http://[::1]:7421/metrics" in line for line in lines)
    assert any("redis-cli -h ::1 -p 7420" in line for line in lines)


def test_before_there_is_anything_it_says_so() -> None:
    lines = drawn(ViewSnapshot(nodes=[NodeRow("n0", "127.0.0.1", 7420)], data_dir="d"))
    assert lines[0].startswith("Tidewarden  no leader")
    assert "tokens  0   0 late   none yet: tidewarden token import FILE" in lines
    assert "kill the leader  nobody leads just now" in lines


def test_of_two_that_believe_to_lead_the_newer_does() -> None:
    late = replace(NODES[0], status=status("n0", "leader", 6))
    found = leader_of([late, NODES[1]])
    assert found is not None
    assert found.name == "n1"
    assert leader_of([NODES[2]]) is None, "a node without a process leads nobody"
    elected = replace(NODES[0], status=status("n0", "leader", 0))
    assert leader_of([elected]) is None, "who has no epoch yet may do nothing yet"


def test_time_left_is_counted_by_its_bounds() -> None:
    now_ms = 1_700_000_000_000
    lives_s = (-1, 0, 9, 10, 59, 119, 3599, 3600, 86_400)
    counts = by_time_left([now_ms + life_s * 1000 for life_s in lives_s] + [0], now_ms)
    assert counts == {
        "expired": 1, "< 10 s": 2, "< 30 s": 1, "< 1 min": 1, "< 2 min": 1, "< 10 min": 0, "< 1 h": 1, "≥ 1 h": 2,
        "no token yet": 1,
    }  # fmt: skip


def test_the_console_is_named_first_also_where_there_is_little_room() -> None:
    for width, height in ((120, 40), (80, 24)):
        lines = drawn(SNAPSHOT, width, height)
        assert lines[1].startswith("console          http://127.0.0.1:7421/   (user admin, ")
        assert any("127.0.0.1:7421" in line for line in lines if line.startswith("n0"))
