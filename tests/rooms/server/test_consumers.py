"""Who holds tasks and waits for them, over all nodes, and how an operator ends that."""

from __future__ import annotations

import asyncio
from typing import Any

import hiredis
import msgspec
import pytest
from support.doors import doubles
from support.doors.consumer_nodes import consumer_nodes
from support.doors.http_store import bearer, http_door

from tidewarden.config.load import User, hash_generated
from tidewarden.queue import TaskSpec
from tidewarden.server.consumers import cluster_consumers, process_consumers, questions

Q = "/v1/queues/q"
SECRET = hash_generated(doubles.SECRET)
USERS = (
    User(name="admin", secret_hash=SECRET),
    User(name="bob", secret_hash=SECRET, rights=("take:q", "put:q", "lock:l")),
    User(name="eve", secret_hash=SECRET, rights=("admin:q",)),
    User(name="ann", secret_hash=SECRET, rights=("take:r",)),
)


async def entered(door: doubles.Door, user: str, name: str = "") -> doubles.Line:
    line = await door.dial()
    said = ("SETNAME", name) if name else ()
    assert (await line.call("HELLO", 3, "AUTH", user, doubles.SECRET, *said))[b"server"]
    return line


def text(found: Any) -> Any:
    """A reply with text instead of bytes."""
    if isinstance(found, dict):
        return {text(name): text(value) for name, value in found.items()}
    if isinstance(found, list):
        return [text(one) for one in found]
    return found.decode() if isinstance(found, bytes) else found


@pytest.fixture
async def nodes(node: Any) -> Any:
    made = [await node("n0"), await node("n1", boot=2)]
    async with consumer_nodes(made, USERS) as found:
        yield found


async def taken(line: doubles.Line, queue: str = "q", wait_ms: int = 0) -> Any:
    wait = ("WAIT", wait_ms) if wait_ms else ()
    return text((await line.call("Q.TAKE", *wait, "FROM", queue))[0])


async def put(nodes: Any, *ids: str, queue: str = "q") -> None:
    for one in ids:
        await nodes[0].queues.put(queue, TaskSpec(b"x" * 1000, id=one))


async def test_leases_and_locks_say_who_has_them(nodes: Any) -> None:
    await put(nodes, "a", "b")
    worker = await entered(nodes[1].door, "bob", "worker-7")
    for what, said in {
        "LIB-NAME": "tidewarden",
        "LIB-VER": "1",
        "HOST": "web-3",
        "PID": "41",
    }.items():
        assert await worker.call("CLIENT", "SETINFO", what, said) == b"OK"
    _, task, lease, *_, end_ms = await taken(worker)
    session = text(await (shared := await entered(nodes[0].door, "bob", "s")).call("SESSION"))
    await taken(shared)
    admin = await entered(nodes[0].door, "admin")
    found = text(await admin.call("Q.HOLDERS", "q"))
    assert (found["queue"], found["after"], found["unreachable"]) == ("q", "", [])
    rows = {one["id"]: one for one in found["holders"]}
    assert rows.keys() == {"a", "b"}
    assert rows[task].items() >= {
        "lease": lease, "lease_end_ms": end_ms, "holder": "n1.2", "session": "", "node": "n1",
        "user": "bob", "name": "worker-7", "library": "tidewarden", "version": "1",
        "host": "web-3", "pid": "41",
    }.items()  # fmt: skip
    now_ms = int((await admin.call("TIME"))[0]) * 1000
    assert rows[task]["since_ms"] == pytest.approx(now_ms, abs=60_000)
    assert rows[task]["address"].startswith("127.0.0.1:")
    assert (rows["b"]["session"], rows["b"]["holder"], rows["b"]["name"]) == (session, "", "s")
    (one,) = text(await admin.call("Q.HOLDERS", "q", "ID", "b"))["holders"]
    assert one | {"since_ms": 0} == rows["b"] | {"since_ms": 0}
    assert text(await admin.call("Q.HOLDERS", "q", "ID", "none"))["holders"] == []
    first = text(await admin.call("Q.HOLDERS", "q", "COUNT", 1))
    rest = text(await admin.call("Q.HOLDERS", "q", "COUNT", 1, "AFTER", first["after"]))
    assert sorted(one["id"] for page in (first, rest) for one in page["holders"]) == ["a", "b"]
    fence = await worker.call("L.ACQUIRE", "l", 60_000)
    unnamed = text(await worker.call("L.PEEK", "l"))
    assert unnamed.keys() == {"name", "fence", "node", "lease_end_ms", "keyed"}
    held = text(await admin.call("L.PEEK", "l"))
    assert (
        held.items() >= {"fence": fence, "node": "n1", "user": "bob", "client": "worker-7"}.items()
    )
    assert held["host"] == "web-3"
    assert held["since_ms"] == pytest.approx(now_ms, abs=60_000)


async def test_consumers_of_all_nodes_are_shown_in_pages(nodes: Any) -> None:
    await put(nodes, "a", "b", "c")
    first = await entered(nodes[0].door, "bob", "first")
    await taken(first)
    second = await entered(nodes[1].door, "bob", "second")
    uuid = text(await second.call("SESSION"))
    _, task, lease, *_ = await taken(second)
    third = await entered(nodes[0].door, "bob", "third")
    assert text(await third.call("SESSION", uuid)) == uuid
    await taken(third)
    await (producer := await entered(nodes[0].door, "bob")).call("Q.PUT", "q", "x", "DELAY", 60_000)
    waiting = await entered(nodes[1].door, "ann", "waiting")
    waiting.send(("Q.TAKE", "WAIT", "60000", "FROM", "r"))
    admin = await entered(nodes[0].door, "admin")
    while True:
        rows = text(await admin.call("R.CONSUMERS"))["consumers"]
        by_name = {one["name"]: one for one in rows}
        if by_name.get("waiting", {}).get("waits"):
            break
    assert by_name.keys() >= {"first", "waiting"}, "who only puts is none"
    assert (
        by_name["first"].items() >= {"node": "n0", "tasks": 1, "waits": [], "session": ""}.items()
    )
    ann = by_name["waiting"]
    assert (ann["user"], ann["tasks"], ann["waits"]) == ("ann", 0, ["r"])
    (shared,) = (one for one in rows if one["session"])
    assert shared.items() >= {"id": uuid, "connections": 2, "tasks": 2, "settled": 0}.items()
    assert [(one["queue"], one["tasks"]) for one in shared["holds"]] == [("q", 2)]
    assert await third.call("Q.ACK", "q", task, lease) == b"OK"
    paged, after = [], ""
    while True:
        page = text(
            await admin.call("R.CONSUMERS", "COUNT", 1, *(("AFTER", after) if after else ()))
        )
        paged += page["consumers"]
        if not (after := page["after"]):
            break
    assert [one["id"] for one in paged] == sorted(one["id"] for one in rows)
    of_ann = text(await admin.call("R.CONSUMERS", "USER", "ann"))["consumers"]
    of_q = text(await admin.call("R.CONSUMERS", "QUEUE", "q"))["consumers"]
    of_n1 = text(await admin.call("R.CONSUMERS", "NODE", "n1"))["consumers"]
    assert [one["name"] for one in of_ann] == ["waiting"]
    assert len(of_q) == 2
    assert {one["node"] for one in of_n1} == {"n1"}
    assert b"n7" in (await (producer).ask("R.CONSUMERS NODE n7"))


async def test_an_ack_by_another_connection_of_a_session_counts(nodes: Any) -> None:
    await put(nodes, "a")
    taker, other = [await entered(nodes[0].door, "bob") for _ in range(2)]
    uuid = await taker.call("SESSION")
    await other.call("SESSION", uuid)
    _, task, lease, *_ = await taken(taker)
    assert await other.call("Q.ACK", "q", task, lease) == b"OK"
    (row,) = text(await other.call("R.CONSUMERS"))["consumers"]
    assert (row["tasks"], row["holds"], row["settled"]) == (0, [], 1)


async def test_a_user_sees_of_others_what_it_administers(nodes: Any) -> None:
    await put(nodes, "a")
    await put(nodes, "b", queue="r")
    await put(nodes, "c", queue="secret")
    bob = await entered(nodes[0].door, "bob")
    await taken(bob)
    admin = await entered(nodes[1].door, "admin", "both")
    await taken(admin, "r")
    await taken(admin, "secret")
    eve, ann = await entered(nodes[0].door, "eve"), await entered(nodes[0].door, "ann")
    of_eve = text(await eve.call("R.CONSUMERS"))["consumers"]
    assert [(one["user"], [hold["queue"] for hold in one["holds"]]) for one in of_eve] == [
        ("bob", ["q"])
    ]
    assert text(await ann.call("R.CONSUMERS"))["consumers"] == []
    await put(nodes, "d")
    await taken(admin)
    shown = str(text(await eve.call("R.CONSUMERS")))
    assert "both" in shown
    assert "secret" not in shown
    assert "'r'" not in shown
    for line, request in (
        (ann, "Q.HOLDERS q"), (bob, "Q.HOLDERS q"), (eve, "Q.HOLDERS r"), (bob, "CLIENT KILL USER bob"),
        (eve, "CLIENT KILL USER bob"), (bob, "Q.RELEASEALL q"), (eve, "Q.HOLDERS _locks"),
    ):  # fmt: skip
        assert (await line.ask(request)).startswith(b"-DENIED"), request


async def test_connections_are_ended_and_what_they_held_is_no_loss(
    nodes: Any, eventually: Any
) -> None:
    await put(nodes, "a", "b")
    gone = [await entered(one.door, "bob", f"w{n}") for n, one in enumerate(nodes)]
    for line in gone:
        await taken(line)
    admin = await entered(nodes[0].door, "admin")
    for wrong in (
        "", " USER", " SKIPME yes", " USER bob ID 0", " FRIEND x", " ID 1 SKIPME maybe",
        " NODE n1", " SESSION x", " a b c",
    ):  # fmt: skip
        assert (await admin.ask(f"CLIENT KILL{wrong}"))[:4] in (b"-BAD", b"-ERR"), wrong
    assert await admin.ask("CLIENT KILL USER bob NODE n9") == (
        b"-NOTFOUND There is no node 'n9'; there are n0, n1, or all."
    )
    assert await admin.ask("CLIENT KILL 127.0.0.1:1") == b"-ERR No such client"
    assert await admin.call("CLIENT", "KILL", "USER", "bob", "NAME", "other") == 0
    assert await admin.call("CLIENT", "KILL", "USER", "bob") == 2
    for line in gone:
        assert await line.rest() == b""

    async def released() -> bool:
        stats = await nodes[0].queues.admin.stats("q")
        return bool(stats["ready"] == 2)

    while not await released():
        pass
    assert [((await nodes[0].queues.admin.peek("q", one))["losses"]) for one in ("a", "b")] == [
        0,
        0,
    ]
    one = await entered(nodes[0].door, "bob")
    number = await one.call("CLIENT", "ID")
    address = text(await one.call("CLIENT", "INFO")).split("addr=")[1].split()[0]
    assert await admin.call("CLIENT", "KILL", "ID", number, "NODE", "n1") == 0
    assert await admin.call("CLIENT", "KILL", address) == b"OK"
    assert await one.rest() == b""
    assert await admin.call("CLIENT", "KILL", "USER", "admin") == 0, "SKIPME yes is the usual"
    assert await admin.call("CLIENT", "KILL", "USER", "admin", "SKIPME", "no") == 1
    assert await admin.rest() == b""


async def test_a_session_is_ended_wherever_its_connections_are(nodes: Any) -> None:
    await put(nodes, "a", "b")
    lines = [await entered(one.door, "bob") for one in nodes]
    uuid = text(await lines[0].call("SESSION"))
    for line in lines:
        await line.call("SESSION", uuid)
        await taken(line)
    lines[1].send(("Q.TAKE", "WAIT", "60000", "FROM", "q"))
    ann, admin = await entered(nodes[0].door, "ann"), await entered(nodes[0].door, "admin")
    assert (await ann.ask("SESSION END " + uuid)).startswith(b"-NOTFOUND")
    assert (await ann.ask("SESSION END x")).startswith(b"-BADARG")
    found = text(await admin.call("SESSION", "END", uuid))
    assert found == {"session": uuid, "released": 2, "unreachable": []}
    assert await lines[0].rest() == b""
    assert (await lines[1].rest())[:9] in (b"", b"-NOTFOUND")
    stats = await nodes[0].queues.admin.stats("q")
    assert (stats["ready"], stats["leased"]) == (2, 0)
    assert (await nodes[0].queues.admin.peek("q", "a"))["losses"] == 0
    assert (await admin.ask("SESSION END " + uuid)).startswith(b"-NOTFOUND")
    again = await entered(nodes[0].door, "bob")
    own = text(await again.call("SESSION"))
    assert own != uuid
    assert (await taken(again))[0] == "q"
    assert text(await again.call("SESSION", "END", own))["released"] == 1
    assert (await again.ask("Q.TAKE FROM q")).startswith(b"-NOTFOUND the session")
    assert text(await again.call("SESSION")) != own


async def test_what_one_holder_or_session_has_is_released(nodes: Any) -> None:
    await put(nodes, "a", "b", "c", "d")
    for one in nodes:
        await taken(await entered(one.door, "bob"))
    shared = await entered(nodes[0].door, "bob")
    uuid = text(await shared.call("SESSION"))
    await taken(shared)
    admin = await entered(nodes[1].door, "admin")
    assert await admin.call("Q.RELEASEALL", "q", "HOLDER", "n7.1") == 0
    assert await admin.call("Q.RELEASEALL", "q", "HOLDER", "n1.2") == 1
    assert await admin.call("Q.RELEASEALL", "q", "SESSION", uuid) == 1
    (left,) = text(await admin.call("Q.HOLDERS", "q"))["holders"]
    assert left["holder"] == "n0.1"
    for wrong in "HOLDER", "SESSION x", "HOLDER a SESSION b", "SESSION", "NODE n0":
        assert (await admin.ask("Q.RELEASEALL q " + wrong)).startswith(b"-BADARG"), wrong
    assert await admin.call("Q.RELEASEALL", "q") == 1


async def test_a_node_that_does_not_answer_is_named(node: Any) -> None:
    made = [await node("n0"), await node("n1", boot=2)]
    async with consumer_nodes(made, USERS, {"n2": "127.0.0.1:8", "n3": ""}) as nodes:
        await put(nodes, "a")
        worker = await entered(nodes[1].door, "bob")
        uuid = text(await worker.call("SESSION"))
        await taken(worker)
        admin = await entered(nodes[0].door, "admin")
        page = text(await admin.call("R.CONSUMERS"))
        assert [one["node"] for one in page["unreachable"]] == ["n2", "n3"]
        assert page["unreachable"][1]["why"] == "no address of it is known"
        assert [one["session"] for one in page["consumers"]] == [uuid]
        held = text(await admin.call("Q.HOLDERS", "q"))
        assert [one["node"] for one in held["unreachable"]] == ["n2", "n3"]
        assert held["holders"][0]["user"] == "bob"
        killed = await admin.call("CLIENT", "KILL", "NAME", "nobody")
        assert isinstance(killed, hiredis.ReplyError)
        assert str(killed).startswith(
            "TIMEOUT 0 connections were closed; not all nodes have answered"
        )
        assert "n3: no address of it is known" in str(killed)
        assert await admin.call("CLIENT", "KILL", "NAME", "nobody", "NODE", "n1") == 0
        ended = text(await admin.call("SESSION", "END", uuid))
        assert (ended["released"], len(ended["unreachable"])) == (1, 2)


async def test_over_http(node: Any) -> None:
    made = [await node("n0"), await node("n1", boot=2)]
    async with (
        consumer_nodes(made, USERS, {"n2": ""}) as nodes,
        http_door(
            made[0].queues,
            users=USERS,
            rooms={"locks": made[0].queues.locks, "consumers_of_cluster": nodes[0].consumers},
        ) as door,
    ):
        admin, bob = {"headers": bearer()}, {"headers": bearer("bob")}
        await put(nodes, "a", "b", "c")
        worker = await entered(nodes[1].door, "bob", "w")
        _, task, *_ = await taken(worker)
        uuid = (await door.good("POST", "/v1/sessions", {}, **bob))["session"]
        in_session = {"headers": bearer("bob") | {"Tidewarden-Session": uuid}}
        await door.good("POST", f"{Q}/take", {}, **in_session)
        await door.good("POST", f"{Q}/take", {"lease_ms": 60_000}, **bob)
        fence = await worker.call("L.ACQUIRE", "l", 60_000)
        lock = await door.good("GET", "/v1/locks/l", **admin)
        assert lock.items() >= {"fence": fence, "user": "bob", "client": "w"}.items()
        assert "user" not in await door.good("GET", "/v1/locks/l", **bob)
        page = await door.good("GET", f"{Q}/holders", **admin)
        assert [one["node"] for one in page["unreachable"]] == ["n2"]
        assert {one["id"] for one in page["holders"]} == {"a", "b", "c"}
        assert {one["user"] for one in page["holders"]} == {"bob"}
        (one,) = (await door.good("GET", f"{Q}/holders?id={task}", **admin))["holders"]
        assert (one["name"], one["holder"]) == ("w", "n1.2")
        page = await door.good("GET", "/v1/consumers", **bob)
        doors = {one["door"]: one for one in page["consumers"]}
        assert doors.keys() == {"resp", "http"}
        assert len(page["consumers"]) == 3
        by_session = {one["session"]: one["tasks"] for one in page["consumers"]}
        assert by_session[uuid] == 1
        assert (await door.call("GET", f"{Q}/holders", **bob))[0] == 403
        assert (await door.call("GET", "/v1/consumers?node=n9", **bob))[0] == 404
        close = "/v1/consumers/close"
        assert (await door.call("POST", close, {"user": "bob"}, **bob))[0] == 403
        for wrong in {}, {"client": 1}, {"user": ""}, {"friend": "x"}, {"node": "n1"}:
            assert (await door.call("POST", close, wrong, **admin))[0] == 400, wrong
        found = await door.good("POST", close, {"user": "bob", "name": "w"}, **admin)
        assert (found["closed"], [one["node"] for one in found["unreachable"]]) == (1, ["n2"])
        assert await worker.rest() == b""
        number = {"client": 10**6, "node": "n1"}
        assert await door.good("POST", close, number, **admin) == {"closed": 0, "unreachable": []}
        ann = {"headers": bearer("ann")}
        assert (await door.call("DELETE", f"/v1/sessions/{uuid}", **ann))[0] == 404
        status, answer = await door.call("DELETE", f"/v1/sessions/{uuid}", **admin)
        assert (status, answer["error"]) == (504, "TIMEOUT")
        assert "n2: no address of it is known" in answer["message"]
        assert (await door.call("DELETE", f"/v1/sessions/{uuid}", **admin))[0] == 404
        (left,) = (await door.good("GET", f"{Q}/holders", **admin))["holders"]
        both = {"holder": "n0.1", "session": uuid}
        assert (await door.call("POST", f"{Q}/release-all", both, **admin))[0] == 400
        only = {"session": left["session"]}
        assert await door.good("POST", f"{Q}/release-all", only, **admin) == {"released": 1}


async def test_over_http_a_user_ends_its_own_session_with_its_connections(node: Any) -> None:
    """It was answered as ended, and its connections went on in it."""
    made = [await node("n0"), await node("n1", boot=2)]
    async with (
        consumer_nodes(made, USERS) as nodes,
        http_door(
            made[0].queues, users=USERS, rooms={"consumers_of_cluster": nodes[0].consumers}
        ) as door,
    ):
        await put(nodes, "a")
        worker = await entered(nodes[1].door, "bob")
        uuid = text(await worker.call("SESSION"))
        await taken(worker)
        bob = {"headers": bearer("bob")}
        assert await door.good("DELETE", f"/v1/sessions/{uuid}", **bob) == {"done": True}
        assert await worker.rest() == b""
        stats = await nodes[0].queues.admin.stats("q")
        assert (stats["ready"], stats["leased"]) == (1, 0)
        assert (await nodes[0].queues.admin.peek("q", "a"))["losses"] == 0
        assert (await door.call("DELETE", f"/v1/sessions/{uuid}", **bob))[0] == 404


async def test_of_leases_with_one_number_that_of_the_task_is_told(nodes: Any) -> None:
    """On a replicated store each shard has that number: an answer with all of them was cut off."""
    await put(nodes, "a")
    worker = await entered(nodes[0].door, "bob")
    await taken(worker)
    leases, _ = await nodes[0].queues.admin.leases("q", 100)
    (holder,) = (await nodes[1].consumers.who("q", leases)).holders
    assert (holder.task, holder.lease) == (b"a", leases[0]["lease"])
    of_another_shard = [leases[0] | {"id": "b"}]
    assert (await nodes[1].consumers.who("q", of_another_shard)).holders == ()


async def test_a_user_learns_nothing_of_others_by_where_a_page_goes_on(nodes: Any) -> None:
    """The cursor was another user's session, for whoever asked for a queue or a user by name."""
    await put(nodes, "a", "b", queue="secret")
    for _ in range(2):
        worker = await entered(nodes[0].door, "admin")
        await worker.call("SESSION")
        await taken(worker, "secret")
    ann, eve = await entered(nodes[1].door, "ann"), await entered(nodes[1].door, "eve")
    nothing = {"consumers": [], "after": "", "unreachable": []}
    for line, asked in (
        (ann, ()), (ann, ("QUEUE", "secret")), (ann, ("USER", "admin")), (eve, ("QUEUE", "secret")),
    ):  # fmt: skip
        assert text(await line.call("R.CONSUMERS", "COUNT", 1, *asked)) == nothing, asked


async def test_a_queue_that_is_asked_for_is_among_those_of_a_consumer(
    nodes: Any, monkeypatch: Any
) -> None:
    """Of a consumer in many queues some are named: it was not found by another one of its."""
    monkeypatch.setattr(questions, "LISTED_MAX", 2)
    worker = await entered(nodes[0].door, "admin")
    for queue in "a", "b", "z":
        await put(nodes, "1", queue=queue)
        await taken(worker, queue)
    asker = await entered(nodes[1].door, "admin")
    (row,) = text(await asker.call("R.CONSUMERS", "QUEUE", "z"))["consumers"]
    assert ([hold["queue"] for hold in row["holds"]], row["tasks"]) == (["a", "z"], 3)
    worker.send(("Q.TAKE", "WAIT", "60000", "FROM", "w1", "w2", "w3"))
    while not (found := text(await asker.call("R.CONSUMERS", "QUEUE", "w3"))["consumers"]):
        pass
    assert found[0]["waits"] == ["w1", "w3"]


async def test_questions_that_read_all_consumers_are_few_at_a_time(
    nodes: Any, monkeypatch: Any
) -> None:
    """Any user may ask them, and each held a list of all: thousands took the node's memory."""

    async def slowly(items: Any, _look_every: int = 1) -> Any:
        await asyncio.sleep(0)
        for item in items:
            yield item

    monkeypatch.setattr(process_consumers, "in_turns", slowly)
    monkeypatch.setattr(process_consumers, "ASKED_MAX", 2)
    own = nodes[0].consumers.own
    asks = [own.answer(questions.ListAsk(10)) for _ in range(5)]
    told = await asyncio.gather(*asks, own.answer(questions.KillAsk("", name="nobody")))
    assert [len(one.silent) for one in told] == [0, 0, 1, 1, 1, 0]
    assert told[2].silent[0].why == "2 such questions are under way"
    assert (await own.answer(questions.ListAsk(10))).silent == ()


async def test_what_another_node_asked_ends_nobody_when_it_is_sent_again(
    nodes: Any, monkeypatch: Any
) -> None:
    mac, asked = cluster_consumers.mac_of("x"), questions.KillAsk("", user="bob")

    def question(word: bytes) -> bytes:
        body = msgspec.msgpack.encode(cluster_consumers.Question(b"0" * 16, "n1", word, asked))
        return mac.of(body) + body

    async def answered(raw: bytes) -> Any:
        reply = await nodes[1].consumers.answer_peer(raw)
        opened = mac.open(reply, b"reply", raw[32:])
        return msgspec.msgpack.decode(opened, type=cluster_consumers.Answer)

    monkeypatch.setattr(cluster_consumers, "WORDS_MAX", 3)
    first = await entered(nodes[1].door, "bob")
    told = await answered(question(b""))
    assert told.told is None
    right = question(told.word)
    assert (await answered(right)).told.closed == 1
    assert await first.rest() == b""
    second = await entered(nodes[1].door, "bob")
    for copy in (right, question(b""), question(b"x" * 16), right):
        assert (await answered(copy)).told is None
    assert await second.call("PING") == b"PONG"
    words = [(await answered(question(b""))).word for _ in range(4)]
    assert (await answered(question(words[0]))).told is None, "of unused words few are kept"
    assert (await answered(question(words[3]))).told.closed == 1
