"""
Today's nodes serve a data folder that an earlier release wrote: store, journals, keys, settings.

The cluster that wrote ``data_of_0_1.tar.xz`` was killed by SIGKILL with work under way. Here it is
unpacked, ``tidewarden up`` serves it on other ports, and everything is compared with what the
earlier release answered before it died.
"""

from __future__ import annotations

import json
import signal
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
from support.cluster.processes import START_S, spawn, until
from support.data_folders.earlier_release import (
    FAR_MS,
    HOOK_KEY,
    MANY,
    READER_SECRET,
    Node,
    events_of,
    exported,
    first_token,
    metric_names,
)
from support.doors.http_app import served_in_thread
from support.providers.scripted_provider import ScriptedProvider, scripted_provider
from support.providers.webhook_receiver import Receiver, receiver

from benchmarks.ports import free_ports

pytestmark = pytest.mark.timeout(400)

ARCHIVES = sorted(Path(__file__).parent.glob("data_of_*.tar.xz"))
UNDER_WAY = {"shop/held": "shop.held.0", "bank/held": "bank.held.0"}
"""Whose requests had no answer when the nodes were killed."""
IN_TROUBLE = ("shop/erring", "shop/page")
NEW_ONES = ("shop/untold", "shop/due", "shop/journaled", *UNDER_WAY)
"""Accounts that were put after the release had been asked what it has."""
METRICS = (
    'tidewarden_queue_buried{queue="broken"} 2.0',
    'tidewarden_queue_buried_total{queue="broken"} 3.0',
    'tidewarden_queue_shards{queue="wide"} 4.0',
    'tidewarden_tokens_accounts{kind="dead",provider="shop"} 3.0',
)
COUNTED_FIRST = {
    "tidewarden_tokens_quarantines_total",
    "tidewarden_tokens_refreshes_total",
    "tidewarden_tokens_events_total",
    "tidewarden_webhook_deliveries_total",
}
"""Figures that a node shows once it has something to count."""
REMEMBERED_MS = 30 * 86_400_000
"""How long the ends of tasks are remembered; later the release itself would have forgotten them."""


@dataclass
class Served:
    """
    Holds what the tests ask: a node that serves the folder, the servers that were its provider
    and its webhook, and what was made.

    ``made`` is the content of ``made.json``; ``now_ms`` the store's time when the nodes served.
    """

    node: Node
    provider: ScriptedProvider
    hooks: Receiver
    made: dict[str, Any]
    base_port: int
    now_ms: int

    @property
    def said(self) -> dict[str, Any]:
        """Return what the release answered before it died."""
        return dict(self.made["said"])

    def task(self, queue: str, task_id: str) -> dict[str, Any]:
        return dict(self.node.ask("Q.PEEK", queue, task_id))

    def account(self, name: str) -> dict[str, Any]:
        return dict(self.node.ask("T.PEEK", name))


@pytest.fixture(scope="module", params=ARCHIVES, ids=lambda path: path.name.partition(".")[0])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """Have the folder served, by a provider that knows every refresh token of it."""
    extra = {"instance_url": "https://login.example.org"}
    made = scripted_provider(life_s=31_000_000, any_number=True, extra=extra)
    with (
        served_in_thread(made) as provider,
        served_in_thread(receiver(HOOK_KEY)) as hooks,
        tarfile.open(request.param) as archive,
    ):
        yield from serve(archive, tmp_path_factory.mktemp("earlier"), provider, hooks)


def serve(
    archive: tarfile.TarFile, parent: Path, provider: ScriptedProvider, hooks: Receiver
) -> Iterator[Served]:
    """Unpack the folder and have it served."""
    archive.extractall(parent, filter="data")
    base, config = free_ports(40), parent / "config.toml"
    text = config.read_text().replace("http://127.0.0.1:@PORT@/hook", hooks.url)
    config.write_text(text.replace("@PORT@", str(provider.port)))
    words = [
        "up",
        "--data-dir",
        str(parent / "data"),
        "--config",
        str(config),
        "--base-port",
        str(base),
    ]
    log = parent / "up.log"
    up = spawn([sys.executable, "-m", "tidewarden", *words], log)
    try:
        until(
            lambda: "READY" in log.read_text() or up.poll() is not None,
            START_S,
            what="the folder is served",
        )
        assert up.poll() is None, log.read_text()
        node = Node(parent / "data", base)
        until(lambda: node.ask("R.STATUS")["leader"], what="a leader")
        seconds, micros = node.ask("TIME")
        made = json.loads((parent / "made.json").read_text())
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        yield Served(node, provider, hooks, made, base, now_ms)
        for path in (parent / "data").glob("n*/n*.log"):
            lines = [line for line in path.read_text().splitlines() if '"trace"' in line]
            assert not lines, lines
    finally:
        up.send_signal(signal.SIGTERM)
        up.wait(60)


def expected(task: dict[str, Any], now_ms: int) -> dict[str, Any]:
    """Return what the time that went by has made of a task that the release showed so."""
    if task["state"] == "delayed" and task["next_ms"] <= now_ms:
        return {name: value for name, value in task.items() if name != "next_ms"} | {
            "state": "ready"
        }
    return task


def wait_for_state(served: Served, queue: str, task_id: str, state: str) -> None:
    """Wait until that task is in that state."""
    what = f"{queue} {task_id} is {state}"
    until(lambda: served.task(queue, task_id)["state"] == state, what=what)


def test_each_task_lies_where_it_lay(served: Served) -> None:
    """Tasks that nobody held are the same, field by field: state, payload, times, history."""
    checked = 0
    for task in served.said["tasks"].values():
        queue, task_id = task["queue"], task["id"]
        if task["state"] == "leased" or task_id == "expires" or queue == "lanes":
            continue  # they have tests of their own
        then = expected(task, served.now_ms)
        wait_for_state(served, queue, task_id, then["state"])
        assert served.task(queue, task_id) == then, f"{queue} {task_id}"
        checked += 1
    assert checked >= 30
    for queue, counts in served.said["counts"].items():
        assert served.node.ask("Q.STATS", queue).get("count_put", 0) >= counts.get("count_put", 0)


def test_leases_of_the_dead_are_over(served: Served) -> None:
    """The lease of a connection, and after its grace of a session, ends as a loss, no attempt."""
    for task_id, lease in (
        ("left", served.made["leases"]["left"]),
        ("kept", served.made["leases"]["kept"]),
    ):
        before = served.said["tasks"][f"mail {task_id}"]
        assert (before["state"], before["lease"]) == ("leased", lease)
        wait_for_state(served, "mail", task_id, "ready")
        now = served.task("mail", task_id)
        assert (now["attempts"], now["losses"], now["payload"]) == (0, 1, before["payload"])
        assert [row["how"] for row in now["history"]] == ["loss"]
        with pytest.raises(redis.ResponseError, match="NOTHELD"):
            served.node.ask("Q.ACK", "mail", task_id, lease)
    with pytest.raises(redis.ResponseError, match="NOTFOUND"):
        served.node.connect().execute_command("SESSION", served.made["session"])


def test_what_expired_meanwhile_is_buried(served: Served) -> None:
    wait_for_state(served, "mail", "expires", "buried")
    assert served.task("mail", "expires")["reason"] == "expired"
    assert served.task("mail", "lives") == served.said["tasks"]["mail lives"]


def test_tasks_are_taken_in_their_order(served: Served) -> None:
    """They come by priority, or deadline, and under lease numbers above all earlier ones."""
    for task_id in ("soon", "left", "kept"):
        wait_for_state(served, "mail", task_id, "ready")
    client = served.node.connect()
    taken = client.execute_command("Q.TAKE", "COUNT", 100, "FROM", "mail")
    assert [row[1] for row in taken] == [
        "second",
        "first",
        "left",
        "kept",
        "ready",
        "soon",
        "lives",
        "bytes",
        "long",
    ]
    assert min(row[2] for row in taken) > max(served.made["leases"].values())
    payloads = {row[1]: row[3] for row in taken}
    assert payloads["bytes"].encode(errors="surrogateescape") == bytes(range(256))
    assert payloads["long"] == "long " * 20_000
    client.close()

    wide = served.node.connect()
    (row,) = wide.execute_command("Q.TAKE", "FROM", "wide")
    assert row[6] - served.now_ms > 40_000  # lease_ms of its settings
    shard = row[1].rpartition("~")[2]
    in_it = [row, *wide.execute_command("Q.TAKE", "COUNT", 100, "FROM", "wide")]
    deadlines = [row[5] for row in in_it if row[1].endswith(f"~{shard}")]
    assert (len(in_it), len(deadlines)) == (12, 3)
    assert deadlines == sorted(deadlines)
    wide.close()


def test_a_queue_of_many_tasks_is_whole(served: Served) -> None:
    """Its records lie in several hashes and its delayed tasks in several pieces of their index."""
    page, _ = served.node.ask("Q.PEEK", "many", "STATE", "delayed", "COUNT", 1000)
    numbers = range(MANY)
    assert [(row["id"], row["due_ms"], row["payload"]) for row in page] == [
        (f"later-{number:03}", FAR_MS + number, f"later {number}") for number in numbers
    ]
    client = served.node.connect()
    taken = client.execute_command("Q.TAKE", "COUNT", 1000, "FROM", "many")
    in_order = sorted(numbers, key=lambda number: (number % 100, number))
    assert [(row[1], row[3]) for row in taken] == [(f"ready-{n:03}", f"many {n}") for n in in_order]
    client.close()


def test_lanes_go_on(served: Served) -> None:
    """One task of each lane runs at a time, in the order of their puts."""
    client = served.node.connect()
    until(
        lambda: served.task("lanes", "north-0")["state"] == "ready",
        what="the dead worker's task is ready",
    )
    for number in range(3):
        taken = client.execute_command("Q.TAKE", "COUNT", 10, "FROM", "lanes")
        assert sorted(row[1] for row in taken) == [f"north-{number}", f"south-{number}"]
        for row in taken:
            client.execute_command("Q.ACK", "lanes", row[1], row[2])
    client.close()


def test_ends_of_tasks_are_remembered(served: Served) -> None:
    """A result that was kept is told, and a finished id is not put again."""
    if served.now_ms > served.made["now_ms"] + REMEMBERED_MS:
        assert served.node.ask("Q.WAIT", "mail", "done", 0) == ["unknown", ""]
        return
    assert served.node.ask("Q.WAIT", "mail", "done", 0) == ["done", "the result of done"]
    assert served.node.ask("Q.WAIT", "mail", "deleted", 0) == ["deleted", ""]
    assert served.node.ask("Q.PUT", "mail", "again", "ID", "done") == "done"
    with pytest.raises(redis.ResponseError, match="NOTFOUND"):
        served.task("mail", "done")


def test_settings_topics_and_pauses_are_in_force(served: Served) -> None:
    for queue, said in served.said["queues"].items():  # there may be more settings by now
        assert said.items() <= served.node.ask("Q.CONFIG", queue).items(), queue
    assert served.node.ask("Q.LIST", "TOPICS") == served.said["topics"]
    served.node.ask("Q.PUT", "orders", "another order", "ID", "order-2")
    assert [served.task(queue, "order-2")["payload"] for queue in ("billing", "shipping")] == [
        "another order"
    ] * 2
    assert served.node.ask("Q.TAKE", "FROM", "paused") == []
    with pytest.raises(redis.ResponseError, match="FULL"):
        served.node.ask("Q.PUT", "small", "one too many")


def test_locks_of_the_dead_are_free_and_fences_grow(served: Served) -> None:
    assert sorted(served.said["locks"]) == ["held", "keyed", "of-session"]
    for name, fence in served.made["fences"].items():
        now = until(
            lambda name=name: served.node.ask("L.ACQUIRE", name, 60_000), what=f"{name} is free"
        )
        assert now > fence, name


def test_schedules_tick_on(served: Served) -> None:
    """Each is there with its next time; a tick that was missed is made up for once."""
    left = {"leap", "yearly", "once", "resting"}

    def listed() -> dict[str, Any]:
        return {row["name"]: row for row in served.node.ask("S.LIST")}

    until(lambda: listed().keys() == left, what="the tick that was missed")
    rows = listed()
    for name, row in rows.items():
        before = served.said["schedules"][name]
        moved = name in ("leap", "yearly") and before["next_ms"] <= served.now_ms
        assert row == before or (moved and row["next_ms"] > served.now_ms), name
    assert (rows["once"]["next_ms"], rows["resting"]["state"]) == (FAR_MS, "paused")
    page, _ = served.node.ask("Q.PEEK", "ticks", "STATE", "ready")
    missed = served.said["schedules"]["missed"]["next_ms"]
    assert [(row["id"], row["payload"]) for row in page] == [
        (f"missed:{missed}", "a tick that was missed")
    ]


def test_tokens_open_and_are_as_they_were(served: Served) -> None:
    """Each account that was well has the very tokens, and all else, that the release had."""
    now, before = exported(served.node), served.said["exported"]
    well = [name for name, row in served.said["accounts"].items() if row["state"] == "fresh"]
    assert len(well) == 9
    for name in well:
        if before[name]["expires_at_ms"] <= served.now_ms + 60_000:
            # it was due, and has its turn
            assert served.provider.requests[before[name]["refresh_token"]] == 1, name
            continue
        assert now[name] == before[name], name
        token, kind, expires_at_ms, generation, state, *_ = served.node.ask("T.GET", name)
        row = before[name]
        assert (token, kind, expires_at_ms) == (
            row["access_token"],
            row["token_type"],
            row["expires_at_ms"],
        )
        assert (generation, state) == (row["generation"], "fresh")
        assert served.account(name)["grant"] == served.said["accounts"][name]["grant"]
    for name in ("shop/dead", "shop/refused"):
        assert now[name] == before[name]
    with pytest.raises(redis.ResponseError, match="NOTFOUND"):
        served.node.ask("T.GET", "shop/deleted")


def test_the_dead_stay_dead_and_the_others_are_refreshed(served: Served) -> None:
    """Who is in trouble or due is asked for, once, with the token that lay sealed in the store."""
    for name in ("shop/dead", "shop/refused", "shop/untold"):
        assert served.account(name)["state"] == "dead"
        assert served.provider.requests[first_token(name)] == 0
    for name in IN_TROUBLE:
        served.node.ask("T.REFRESH", name, "GENERATION", 1)  # its next try may be some while ahead
    for name in (*IN_TROUBLE, "shop/due", *UNDER_WAY):
        until(
            lambda name=name: served.account(name)["state"] == "fresh", what=f"{name} is refreshed"
        )
        assert served.provider.requests[first_token(name)] == 1, name
        second = f"secret-access-{first_token(name).removesuffix('.0')}-1"
        assert served.node.ask("T.GET", name)[0] == second


def test_an_answer_in_the_journal_is_stored_and_not_asked_for_again(served: Served) -> None:
    until(
        lambda: served.account("shop/journaled")["state"] == "fresh",
        what="the journal's answer is stored",
    )
    assert served.provider.requests["shop.journaled.0"] == 0
    row = exported(served.node)["shop/journaled"]
    assert (row["refresh_token"], row["access_token"]) == (
        "shop.journaled.1",
        "access-shop.journaled.1",
    )
    assert sum(shown == "shop.journaled.0" for _, shown in served.made["seen"]) == 1


def test_an_answer_that_nobody_could_read_is_still_kept(served: Served) -> None:
    kept = [row["body"] for row in served.said["unread"]["answers"]]
    assert [row["body"] for row in served.node.ask("T.ANSWERS", "shop/page")["answers"]] == kept
    assert kept == ["<html>Please sign in</html>"] * len(kept) != []


def test_events_go_on_from_where_they_were(served: Served) -> None:
    """Earlier events keep their ids, the untold one is told now, and the webhook hears of all."""
    before = served.said["events"]

    def of_untold() -> list[dict[str, Any]]:
        found = [event for event in events_of(served.node) if event["type"] == "account.dead"]
        return [event for event in found if event["data"]["account"] == "shop/untold"]

    untold = until(of_untold, what="the event in the outbox is told")
    assert events_of(served.node)[: len(before)] == before
    owed = {event["id"] for event in (*before, *untold) if event["type"].startswith("account.")}
    until(
        lambda: owed <= {message_id for message_id, _ in served.hooks.got},
        what="the webhook hears of them",
    )


def test_providers_and_the_vault_stand_as_they_stood(served: Served) -> None:
    stats = served.node.ask("T.STATS")
    assert (
        stats["atlas"]["quarantined_since_ms"]
        == served.said["providers"]["atlas"]["quarantined_since_ms"]
        > 0
    )
    assert {name: row["grant"] for name, row in stats.items()} == {
        name: row["grant"] for name, row in served.said["providers"].items()
    }
    vault = served.node.ask("V.STATUS")
    assert vault["kek"] == served.said["vault"]["kek"]
    assert vault["data_keys"] >= served.said["vault"]["data_keys"] == 2


def test_members_are_known_under_their_new_addresses(served: Served) -> None:
    """The members go by the configured ports, and the epoch is above every earlier one."""
    status = served.node.ask("R.STATUS")
    assert {name: row["address"] for name, row in status["members"].items()} == {
        f"n{number}": f"127.0.0.1:{served.base_port + 10 * number}" for number in range(3)
    }
    assert status["epoch"] > served.said["epoch"]
    assert status["raft"]["members_version"] > 2


def test_users_and_metrics_are_as_configured(served: Served) -> None:
    reader = served.node.connect("reader", READER_SECRET)
    assert reader.execute_command("T.PEEK", "shop/fresh")["state"] == "fresh"
    with pytest.raises(redis.ResponseError, match="DENIED"):
        reader.execute_command("Q.PUT", "mail", "not allowed")
    reader.close()
    lines = served.node.get("/metrics").splitlines()
    assert [line for line in METRICS if line not in lines] == []
    assert set(served.said["metrics"]) - metric_names(served.node) <= COUNTED_FIRST


def test_doctor_finds_nothing(served: Served) -> None:
    assert {
        row["queue"]: row["found"] for row in served.node.ask("Q.CHECK", "*") if row["problems"]
    } == {}
