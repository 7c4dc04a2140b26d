"""Scripts by name, with what is put before them, sent again where a server forgot them."""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import gc
import hashlib
import re
from collections.abc import Iterator
from importlib import resources
from typing import Any

import pytest
import redis
from support.inspect import scripts_of, shards_of
from support.queues.desk import CLUSTER, SENT, queue_scripts

from tidewarden.clock import SystemClock
from tidewarden.errors import BadArg, Error, Full
from tidewarden.node.store_links import StoreLinks
from tidewarden.queue import TaskSpec
from tidewarden.queue.shards.shard_group import TOGETHER
from tidewarden.queue.shared_lua import SHARED
from tidewarden.store import Scripts
from tidewarden.store.reply_errors import TooFewCopies
from tidewarden.store.scripts import loader as store_scripts
from tidewarden.store.scripts.loader import ScriptHeader, header_of

VERBS = [
    "ack",
    "batch",
    "check",
    "check_record",
    "configure",
    "create_queue",
    "delete",
    "delete_buried",
    "drop_queue",
    "drop_topic",
    "end",
    "job_numbers",
    "kick",
    "kick_delayed",
    "lanes",
    "leases",
    "leases_of",
    "link",
    "lock_acquire",
    "lock_release",
    "lock_renew",
    "note_dropped",
    "pause",
    "peek",
    "purge",
    "put",
    "put_again",
    "read_buried",
    "reap",
    "reasons",
    "release_all",
    "session_bury",
    "session_due",
    "session_end",
    "session_enter",
    "session_forget",
    "session_join",
    "session_leave",
    "session_release",
    "session_stop",
    "stats",
    "swap_settings",
    "sweep",
    "take",
    "tally",
    "touch",
    "tube",
    "tube_numbers",
    "tube_of_number",
    "unused",
    "unwait",
    "update",
    "wait",
    "wipe",
]


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """After a test that flushed them, the next test sends the session's server its scripts anew."""
    yield
    SENT.clear()


def test_every_verb_has_a_script_by_its_room_and_file() -> None:
    scripts = Scripts(SHARED, ("tidewarden.queue",), plain=("tidewarden.cluster",))
    assert {script.name for script in scripts} == {f"queue.{verb}" for verb in VERBS} | {
        "queue.configure.each",
        "queue.stats.each",
        "queue.tube.each",
        "queue.unused.each",
        "cluster.beat", "cluster.bury", "cluster.claim", "cluster.clock", "cluster.register",
    }  # fmt: skip
    for script in scripts:
        assert script.sha == hashlib.sha1(script.source).hexdigest()
        assert scripts[script.name] is script
        assert (b"\nlocal P, CALLER\n" in script.source) == script.name.startswith("queue.")
        assert bool(script.function) == script.name.startswith("queue.")
    with pytest.raises(KeyError):
        scripts["queue.none"]
    unguarded = [script for script in scripts if not script.guarded]
    assert {script.name for script in unguarded} == {
        "cluster.beat",
        "cluster.claim",
        "cluster.clock",
    }
    assert not [script.name for script in unguarded if b"KEYS[1] .." in script.source], (
        "it touches a second key"
    )


def test_a_folders_prelude_comes_between(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "tidewarden_room"
    (folder / "lua").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "lua" / "prelude.lua").write_text("local MARK = 1\n")
    (folder / "lua" / "verb.lua").write_text("-- DURABILITY none\n-- GROWS   no\nreturn MARK\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    scripts = Scripts(SHARED, ("tidewarden_room",))
    (script,) = scripts
    assert script.name == "tidewarden_room.verb"
    text = script.source.decode()
    assert (
        0
        <= text.index("local P, CALLER")
        < text.index("local MARK = 1")
        < text.index("return MARK")
    )


@pytest.mark.parametrize(
    ("header", "fault"),
    [
        ("-- GROWS   no", "has no DURABILITY; allowed are none, queue, system, strongest"),
        ("-- DURABILITY some\n-- GROWS no", "says DURABILITY some; allowed are none, queue"),
        ("-- DURABILITY none", "has no GROWS; allowed are no, yes"),
        ("-- DURABILITY none\n-- GROWS maybe", "says GROWS maybe; allowed are no, yes"),
        (
            "-- DURABILITY none\n-- GROWS no\n-- SHRINKS yes",
            "unknown directive SHRINKS; there are DURABILITY",
        ),
        ("-- DURABILITY none\n-- DURABILITY queue\n-- GROWS no", "says DURABILITY twice"),
        ("-- DURABILITY queue\n-- GROWS no\n-- EACH of several", "waits for no durability"),
        ("return 1\n-- DURABILITY none\n-- GROWS no", "has no DURABILITY"),
        ("-- DURABILITY none\n-- GROWS yes\n-- READS", "READS waits for no durability, grows"),
        (
            "-- DURABILITY none\n-- GROWS no\n-- READS\nredis.call('HGET')\nredis.pcall('HSET')",
            "says READS, and it calls HSET",
        ),
    ],
)
def test_a_header_that_does_not_say_what_its_script_needs(header: str, fault: str) -> None:
    with pytest.raises(ValueError, match=f"room/lua/verb.lua: .*{fault}"):
        header_of("room/lua/verb.lua", f"-- verb: does something\n{header}\n")


def test_what_a_header_says() -> None:
    text = (
        "-- batch: does something\n-- DURABILITY queue\n-- GROWS   yes\n-- VERBS   put take\n--"
        " GUARDED for\nopen()\n"
    )
    assert header_of("x", text) == ScriptHeader("queue", True, ("put", "take"), guarded=True)


def test_what_makes_the_store_grow_is_a_promise() -> None:
    assert not [
        script.name for script in queue_scripts() if script.grows and script.durability == "none"
    ]


@pytest.mark.parametrize("verb", VERBS)
def test_every_script_begins_with_what_it_takes_and_returns(verb: str) -> None:
    own = queue_scripts()[f"queue.{verb}"].source.decode().split("return run(function()\n")[1]
    head = [line for line in own.splitlines()[:20] if line.startswith("--")]
    assert head[0].startswith(f"-- {verb}: ")
    assert any(line.startswith("-- KEYS ") for line in head)
    assert any(line.startswith("-- RETURNS ") for line in head)


async def test_a_server_that_forgot_its_scripts_is_sent_them_again(node: Any) -> None:
    n0 = await node()
    assert await n0.queues.put("q", TaskSpec(b"x")) != ""
    await n0.link.call("SCRIPT", "FLUSH")
    ids = await asyncio.gather(*(n0.queues.put("q", TaskSpec(b"x")) for _ in range(3)))
    assert len(set(ids)) == 3
    assert (await n0.queues.admin.stats("q"))["ready"] == 4
    await n0.link.call("SCRIPT", "FLUSH")
    calls = n0.link.calls
    taken = await n0.queues.take(n0.queues.open_session(), ["q"], count=10)
    assert len(taken) == 4
    assert n0.link.calls == calls + 2
    await n0.queues.put("q", TaskSpec(b"x"))
    await n0.queues.take(n0.queues.open_session(), ["q"])
    assert n0.link.calls == calls + 2 + 3  # put was forgotten too, take is known again


CONNECT_BYTES_MAX = 1000
"""What a connect may send to a server: a login, a name, a question or two."""


@pytest.mark.parametrize("replicated", [False, True])
async def test_a_connect_to_one_of_several_stores_sends_no_scripts(
    valkey: Any, monkeypatch: pytest.MonkeyPatch, *, replicated: bool
) -> None:
    """
    All links of all nodes come at once to a store that has just taken over, and that has the
    library. Any other server is sent all, so that calls which are sent together keep their order.
    """
    monkeypatch.setattr(StoreLinks, "replicated", replicated)
    links = StoreLinks(valkey.url, CLUSTER, "n0", SystemClock(), queue_scripts(library=True))
    valkey.client.config_resetstat()
    async with links.open("data") as data, links.open("control") as control:
        await data.call("PING")
        await control.call("PING")
        loads = [name for name in valkey.client.info("commandstats") if name.endswith("|load")]
        assert bool(loads) is not replicated
        sent = valkey.client.info("stats")["total_net_input_bytes"]
        assert (sent < 2 * CONNECT_BYTES_MAX) is replicated


async def test_a_refusal_is_the_error_of_its_word_and_nothing_more(node: Any) -> None:
    n0 = await node()
    run = n0.scripts.run(n0.link, "queue.sweep", ["{tw:q:0}"], ["0", "n0.1", "x", "1"])
    with pytest.raises(BadArg) as caught:
        await run
    assert str(caught.value) == "epoch is not an integer: x"


@pytest.mark.parametrize("embedded", [True, False])
async def test_a_script_waits_until_copies_follow_an_embedded_store_again(
    node: Any, valkey: Any, *, embedded: bool
) -> None:
    n0 = await node(views=embedded)
    await n0.queues.put("q", TaskSpec(b"x"))
    with alone(valkey):
        pause = asyncio.ensure_future(n0.queues.admin.pause("q"))
        await asyncio.wait({pause}, timeout=1 if embedded else None)
    if embedded:
        await pause
    else:
        with pytest.raises(TooFewCopies):
            await pause
    taken = await n0.queues.take(n0.queues.open_session(), ["q"])
    assert len(taken) == (0 if embedded else 1)


async def test_a_script_that_waited_for_copies_for_too_long_is_refused(
    node: Any, valkey: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    n0 = await node(views=True)
    await n0.queues.put("q", TaskSpec(b"x"))
    limit_s = 2.0
    monkeypatch.setattr(n0.scripts, "limit_s", limit_s)
    loop = asyncio.get_running_loop()
    with alone(valkey):
        with pytest.raises(TooFewCopies, match="nothing was done"):
            await n0.queues.admin.pause("q")
        began_s = loop.time()
        with pytest.raises(TooFewCopies):
            await n0.queues.admin.pause("q")
        assert loop.time() - began_s < limit_s, "it has been refused for so long already"
    await n0.queues.admin.pause("q")


@contextlib.contextmanager
def alone(valkey: Any) -> Iterator[None]:
    """The store refuses writes, for no copy follows it."""
    valkey.client.config_set("min-replicas-to-write", 1)
    try:
        yield
    finally:
        valkey.client.config_set("min-replicas-to-write", 0)


async def test_a_defect_in_a_script_is_a_plain_error(node: Any) -> None:
    n0 = await node()
    await n0.link.call("SET", "{tw:q:0}:tasks", "not a hash")
    with pytest.raises(Error, match="WRONGTYPE") as caught:
        await n0.scripts.run(n0.link, "queue.delete", ["{tw:q:0}"], ["0", "n0.1", "a", "0", "0"])
    assert type(caught.value) is Error
    await n0.link.call("DEL", "{tw:q:0}:tasks")


async def test_a_caller_that_has_gone_hears_nothing(node: Any) -> None:
    n0 = await node()
    await n0.link.call("SCRIPT", "FLUSH")
    future = n0.scripts.run(n0.link, "queue.stats", ["{tw:q:0}"], ["0", "n0.1"])
    future.cancel()
    assert await n0.link.call("PING") == b"PONG"


async def test_a_refusal_that_nobody_waits_for_is_no_defect(node: Any) -> None:
    """asyncio reports an exception that nobody has looked at, which a cancelled caller cannot."""
    n0 = await node()
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    n0.scripts.run(n0.link, "queue.sweep", ["{tw:q:0}"], (0, "n0.1", "nonsense", 1)).cancel()
    await n0.link.call("PING")
    gc.collect()
    assert not reported


async def test_on_an_embedded_store_scripts_run_from_the_library(node: Any) -> None:
    n0 = await node(views=True)
    await n0.queues.put("q", TaskSpec(b"x"))
    assert b"cmdstat_fcall:" in await n0.link.call("INFO", "commandstats")
    await n0.link.call("CONFIG", "RESETSTAT")
    await n0.link.call("FUNCTION", "FLUSH")
    (taken,) = await n0.queues.take(n0.queues.open_session(), ["q"])
    assert b"cmdstat_evalsha:calls=1," in await n0.link.call("INFO", "commandstats"), (
        "what the library lacks is done without"
    )
    await n0.scripts.use_library(n0.link, True)
    await n0.scripts.use_library(n0.link, True)  # another node may have loaded it
    assert await n0.queues.ack(n0.queues.open_session(), "q", [(taken.id, taken.lease)]) == [1]
    stats = await n0.link.call("INFO", "commandstats")
    assert b"cmdstat_fcall:calls=2," in stats  # one of them was not found
    assert b"cmdstat_evalsha:calls=1," in stats


async def test_a_full_store_refuses_only_what_grows(node: Any) -> None:
    n0 = await node(views=True)
    await n0.queues.put("q", TaskSpec(b"x"))
    session = n0.queues.open_session()
    await n0.link.call("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(Full):
            await n0.queues.put("q", TaskSpec(b"x"))
        (taken,) = await n0.queues.take(session, ["q"])
        assert await n0.queues.ack(session, "q", [(taken.id, taken.lease)]) == [1]
    finally:
        await n0.link.call("CONFIG", "SET", "maxmemory", "0")


async def test_a_full_store_without_the_library_is_offered_it_until_it_has_room(
    node: Any, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    """
    As one that was started full has none: nobody would load it again before the next connection.
    """
    n0 = await node(views=True)
    session = n0.queues.open_session()
    await n0.queues.put("q", TaskSpec(b"x"))
    await n0.link.call("FUNCTION", "FLUSH")
    await n0.link.call("CONFIG", "SET", "maxmemory", "1")
    try:
        await n0.scripts.use_library(n0.link, True)
        (taken,) = await n0.queues.take(session, ["q"])
        await n0.link.call("CONFIG", "RESETSTAT")
        assert await n0.queues.ack(session, "q", [(taken.id, taken.lease)]) == [1]
        assert b"cmdstat_fcall:" not in await n0.link.call("INFO", "commandstats"), (
            "it is known to be missing"
        )
    finally:
        await n0.link.call("CONFIG", "SET", "maxmemory", "0")
    monkeypatch.setattr(store_scripts, "OFFER_S", 0.0)

    async def from_library() -> bool:
        await n0.link.call("CONFIG", "RESETSTAT")
        await n0.queues.put("q", TaskSpec(b"x"))
        return b"cmdstat_fcall:calls=1," in await n0.link.call("INFO", "commandstats")

    async with asyncio.timeout(20):
        while not await from_library():
            pass


def test_the_shared_file_keeps_nothing_between_two_calls() -> None:
    """
    As a library it is read once: outside of functions there are names and constants, and `begin`
    gives the names their values.
    """
    folder = resources.files(SHARED.package) / "lua" / "shared"
    texts = [(folder / name).read_text() for name in SHARED.files]
    lines = "\n".join(texts).splitlines()
    outside = [line for line in lines if re.match(r"local (?!function)", line)]
    assert outside
    for line in outside:
        # shards' records, which it compares with what is stored
        if line != "local kept = { many = 0 }":
            assert re.fullmatch(r"local [A-Za-z_, ]+( --.*)?|local [A-Z_, ]+ = .*", line), (
                f"{line} would keep its value"
            )


@pytest.mark.parametrize("forgets", [False, True])
async def test_a_script_is_run_for_all_shards_of_a_queue_in_one_call(
    node: Any, *, forgets: bool
) -> None:
    n0 = await node()
    await n0.queues.admin.configure("q", {"shards": 4})
    ids = await asyncio.gather(*(n0.queues.put("q", TaskSpec(b"x")) for _ in range(20)))
    for shard in range(4):
        await n0.queues.scripts.run("queue.stats", "q", shard, ())
    await n0.queues.scripts.run_each("queue.stats", "q", ())  # it knows the script now
    if forgets:
        await n0.link.call("SCRIPT", "FLUSH")
        if scripts_of(n0.queues).embedded:
            await n0.link.call("FUNCTION", "FLUSH")
    calls = n0.link.calls
    rows = await n0.queues.scripts.run_each("queue.stats", "q", ())
    assert n0.link.calls - calls <= (1 if not forgets else 4), (
        "one, and what a server that has forgotten it is sent"
    )
    assert [row[1] for row in rows] == [
        (await n0.queues.scripts.run("queue.stats", "q", shard, ()))[1] for shard in range(4)
    ]
    assert sum(row[1] for row in rows) == len(ids)


async def test_a_shard_that_refuses_is_asked_by_itself(node: Any) -> None:
    """
    The others of the call have answered; one that was cut anew, or cannot be read, is dealt with as
    ever.
    """
    n0, n1 = await node(), await node("n1")
    await n0.queues.admin.configure("q", {"shards": 4})
    assert len(await n0.queues.scripts.run_each("queue.stats", "q", ())) == 4
    await n1.queues.admin.settings("q")
    await n1.queues.admin.configure("q", {"shards": 2})
    assert [row[1] for row in await n0.queues.scripts.run_each("queue.stats", "q", ())] == [0, 0]
    assert (await n0.queues.admin.stats("q"))["shards"] == 2
    await n0.link.call("HSET", shards_of(n0.queues, "q")[1].keys[0] + ":shard", "format", "99")
    with pytest.raises(Error, match="has format 99"):
        await n0.queues.scripts.run_each("queue.stats", "q", ())


async def test_queues_that_are_asked_in_one_turn_are_asked_in_one_call(node: Any) -> None:
    """
    Each hears what it has itself, whoever gives up: one of them asked first, another was sent.
    """
    n0 = await node()
    names = [f"q{number}" for number in range(TOGETHER + 2)]
    for name, shards in ((names[0], 2), (names[-1], 3)):
        await n0.queues.admin.configure(name, {"shards": shards})
    puts = (
        n0.queues.put(name, TaskSpec(b"x")) for n, name in enumerate(names) for _ in range(n + 3)
    )
    await asyncio.gather(*puts)
    asked = [asyncio.ensure_future(counts(n0, name)) for name in names]
    alone = [
        [
            (await n0.queues.scripts.run("queue.stats", name, shard, ()))[1]
            for shard in range({names[0]: 2, names[-1]: 3}.get(name, 1))
        ]
        for name in names
    ]
    assert [sum(one) for one in alone] == [n + 3 for n in range(len(names))]
    assert await asyncio.gather(*asked) == alone
    for turns in (1, 3):  # before the call is sent, and after
        calls = n0.link.calls
        asked = [asyncio.ensure_future(counts(n0, name)) for name in names]
        for _ in range(turns):
            await asyncio.sleep(0)
        assert (n0.link.calls > calls) is (turns > 1)
        for given_up in (asked[1], asked[7]):
            given_up.cancel()
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert n0.link.calls - calls == 2, "those of one shard, and the two that were configured"
        for place, one in enumerate(found):
            if place in (1, 7):
                assert isinstance(one, asyncio.CancelledError)
            else:
                assert one == alone[place]


async def test_a_queue_that_refuses_harms_no_other_that_is_asked_in_the_same_call(
    node: Any,
) -> None:
    """One was cut anew, another cannot be read."""
    n0, n1 = await node(), await node("n1")
    for name in ("q1", "q2"):
        await n0.queues.put(name, TaskSpec(b"x"))
    await n1.queues.admin.configure("new", {"shards": 2})
    await n0.queues.admin.settings("new")
    await n1.queues.admin.configure("new", {"shards": 3})
    both = await asyncio.gather(counts(n0, "new"), counts(n0, "q1"))
    assert both == [[0, 0, 0], [1]]
    await n0.link.call("HSET", shards_of(n0.queues, "q2")[0].keys[0] + ":shard", "format", "99")
    await n0.queues.scripts.run("queue.stats", "q1", 0, ())
    spoilt, well = await asyncio.gather(counts(n0, "q2"), counts(n0, "q1"), return_exceptions=True)
    assert "has format 99" in str(spoilt)
    assert well == [1]


async def counts(node: Any, queue: str) -> list[int]:
    """Count the ready tasks of each shard."""
    return [row[1] for row in await node.queues.scripts.run_each("queue.stats", queue, ())]


LOCALS_SPARE = 2


@pytest.mark.parametrize("room", ["queue", "tokens", "scheduler"])
def test_the_library_has_locals_to_spare(valkey: Any, room: str) -> None:
    """
    Lua allows 200 at a time in one function, and the shared files and a room's prelude are one: the
    server would refuse all of it.
    """
    scripts = queue_scripts()
    first = next(script.function for script in scripts if script.name.startswith(f"{room}."))
    text = scripts.library.decode()
    place = text.rindex(
        "\ndo\nlocal function verb()\n", 0, text.index(f"redis.register_function('{first}'")
    )

    def loads(more: int) -> bool:
        with_more = text[:place] + "".join(f"\nlocal spare_{n}" for n in range(more)) + text[place:]
        for named in ("register_function('", "function_name = '"):
            with_more = with_more.replace(named, f"{named}spare_")
        _, _, body = with_more.partition("\n")
        try:
            valkey.client.execute_command(
                "FUNCTION", "LOAD", "REPLACE", f"#!lua name=spare\n{body}"
            )
        except redis.ResponseError as error:
            if "more than 200 local variables" not in str(error):
                raise
            return False
        return True

    try:
        left = bisect.bisect_left(range(200), True, key=lambda more: not loads(more)) - 1
    finally:
        with contextlib.suppress(redis.ResponseError):
            valkey.client.execute_command("FUNCTION", "DELETE", "spare")
    assert left >= LOCALS_SPARE, (
        f"{left} are left of 200: put functions into a table, or where they are used"
    )
    print(f"{room}: {left} left")
