"""Who may do what at the beanstalkd door, and what it makes of rubbish."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import greenstalk
import pytest
from support.doors.beanstalkd_site import BeanstalkdSite, beanstalkd_site
from support.doors.doubles import ADMIN, SECRET
from support.inspect import job_bytes_of
from support.providers import certificate
from support.waiting import eventually

from tidewarden.server.beanstalkd import connection
from tidewarden.server.resp.backpressure import UNAUTHENTICATED_BYTES


async def test_nothing_is_done_for_who_has_not_said_who_it_is(node: Any) -> None:
    async with beanstalkd_site((await node()).queues, users=(ADMIN,)) as site:
        talk = await site.dial()
        for line in ("reserve", "stats", "list-tubes", "peek 1", "use a", "delete 1"):
            assert await talk.ask(line) == b"NOAUTH"
        assert await talk.ask("put 0 0 1 1\r\nx") == b"NOAUTH"
        assert await talk.ask("auth admin wrong") == b"WRONGPASS"
        assert await talk.ask("auth admin") == b"BAD_FORMAT"
        assert await talk.ask(f"auth admin {SECRET}") == b"OK"
        assert await talk.put() > 0
        assert site.server.stats()["errors_total"] == {"NOAUTH": 7, "WRONGPASS": 1}


async def test_a_job_of_a_stranger_is_not_kept(node: Any) -> None:
    body = b"x" * 60_000
    async with beanstalkd_site((await node()).queues, users=(ADMIN,)) as site:
        talk = await site.dial()
        assert await talk.ask(b"put 0 0 1 %d\r\n" % len(body) + body) == b"NOAUTH"
        (there,) = site.server.context.peers.connections
        assert job_bytes_of(there) == UNAUTHENTICATED_BYTES
        assert await talk.ask(f"auth admin {SECRET}") == b"OK"
        assert await talk.put(body) > 0


async def test_rights_are_those_to_the_queue(node: Any) -> None:
    users = (ADMIN, replace(ADMIN, name="worker", rights=("take:mail*", "put:mail:in")))
    async with beanstalkd_site((await node()).queues, users=users) as site:
        talk, admin = await site.dial(), await site.dial()
        await admin.ask(f"auth admin {SECRET}")
        assert await talk.ask(f"auth worker {SECRET}") == b"OK"
        assert await talk.ask("put 0 0 1 1\r\nx") == b"DENIED"
        assert await talk.ask("watch other") == b"DENIED"
        assert await talk.ask("reserve-with-timeout 0") == b"DENIED"
        assert await talk.ask("watch mail;in") == b"WATCHING 2"
        assert await talk.ask("use mail;in") == b"USING mail;in"
        number = await talk.put(b"mine")
        foreign = await admin.put(b"not mine")
        # of `default`, which everybody watches, nothing is taken
        assert await talk.reserve() == (number, b"mine")
        for line in (f"peek {foreign}", f"delete {foreign}", f"stats-job {foreign}"):
            assert await talk.ask(line) == b"DENIED"
        assert await talk.ask("kick 1") == b"DENIED"
        assert await talk.ask("pause-tube mail;in 1") == b"DENIED"
        assert await talk.ask("stats-tube default") == b"DENIED"
        assert await talk.body("list-tubes") == (b"OK", b"---\n- mail;in\n")
        assert (await talk.stats("stats"))["current-jobs-ready"] == "0"
        assert (await admin.stats("stats"))["current-jobs-ready"] == "1"
        assert await talk.ask(f"delete {number}") == b"DELETED"
        # a job that it has not reserved is not its to delete, though it may take it
        number = await talk.put(b"another's")
        assert await talk.ask(f"delete {number}") == b"DENIED"
        assert await admin.ask(f"delete {number}") == b"DELETED"


async def test_a_certificate_names_its_user(node: Any, tmp_path: Path) -> None:
    own, client, other = (certificate.make(tmp_path, name) for name in ("own", "worker", "nobody"))
    known = replace(ADMIN, name="worker", rights=("put", "take"))
    authorities = tmp_path / "authorities.pem"
    authorities.write_bytes(Path(client[0]).read_bytes() + Path(other[0]).read_bytes())
    queues = (await node()).queues
    async with beanstalkd_site(
        queues, users=(ADMIN, known), certificate=own, client_ca=str(authorities)
    ) as site:
        for shown, answer in ((client, b"USING a"), (other, b"NOAUTH"), (None, b"NOAUTH")):
            context = ssl.create_default_context(cafile=own[0])
            if shown is not None:
                context.load_cert_chain(*shown)
            talk = await site.dial(context)
            assert await talk.ask("use a") == answer
            if shown is client:
                assert await talk.put() > 0
                assert await talk.ask("kick 1") == b"DENIED"
        assert await talk.ask(f"auth admin {SECRET}") == b"OK"


PUT = b"put 0 0 1 1\r\nx\r\n"
LONG = b"a" * 300


@pytest.mark.parametrize(
    "sent",
    [
        b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /%b HTTP/1.1\r\nHost: %b.localhost\r\n\r\n" % (LONG, LONG),
        b"GET /reserve HTTP/1.1\r\n\r\n",
        b"reserve / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"EHLO mail.example.org\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(300) + b"\r\n",
        b"\x16\x03\x01\x00\x05\x01\r\n",
        b"use a\0\r\n",
        b"\r\n",
    ],
)
async def test_who_speaks_another_protocol_is_sent_away(site: BeanstalkdSite, sent: bytes) -> None:
    """A page in a browser has somebody's else lines sent here, behind a head of its own."""
    talk = await site.dial()
    talk.send(sent + PUT + PUT)
    async with asyncio.timeout(20):
        assert b"INSERTED" not in await talk.reader.read()
    assert site.server.stats()["requests_total"].get("put", 0) == 0
    # nor piece by piece
    talk = await site.dial()
    for piece in (sent[:200], sent[200:], PUT):
        talk.send(piece)
        await talk.writer.drain()
        await asyncio.sleep(0)
    async with asyncio.timeout(20):
        with contextlib.suppress(ConnectionResetError):
            assert b"INSERTED" not in await talk.reader.read()
    assert site.server.stats()["requests_total"].get("put", 0) == 0


async def test_a_line_that_is_no_command_is_told_to_who_has_sent_one(site: BeanstalkdSite) -> None:
    talk = await site.dial()
    assert await talk.ask("use a") == b"USING a"
    for line in ("nonsense", "x" * 300, "put x"):
        assert await talk.ask(line) in (b"UNKNOWN_COMMAND", b"BAD_FORMAT")
    assert await talk.put() > 0


async def test_one_user_leaves_connections_and_waits_to_others(node: Any) -> None:
    users = (ADMIN, replace(ADMIN, name="eve"))
    async with beanstalkd_site((await node()).queues, users=users, connections_max=10) as site:
        talks = [await site.dial() for _ in range(10)]
        said = [await talk.ask(f"auth eve {SECRET}") for talk in talks[:9]]
        assert said == [b"OK"] * 8 + [b"OUT_OF_MEMORY"]
        assert await talks[9].ask(f"auth admin {SECRET}") == b"OK"
        limits = site.server.context.limits
        assert limits.beanstalkd_connections.by_user == {"eve": 8, "admin": 1}
        limits.waits.whole = 5
        for talk in talks[:4]:
            talk.send(b"reserve\r\n")
        async with asyncio.timeout(20):
            await eventually(lambda: limits.waits.used >= 4)
        assert await talks[4].ask("reserve") == b"OUT_OF_MEMORY"
        assert await talks[4].ask("reserve-with-timeout 0") == b"TIMED_OUT"
        talks[9].send(b"reserve\r\n")
        async with asyncio.timeout(20):
            await eventually(lambda: limits.waits.used >= 5)
            for talk in talks:
                talk.writer.transport.abort()
            while limits.waits.used or limits.beanstalkd_connections.used:
                await asyncio.sleep(0.001)


@pytest.mark.parametrize("seed", range(3))
async def test_rubbish_harms_nobody_else(site: BeanstalkdSite, seed: int) -> None:
    draw = random.Random(seed)
    other = await site.dial()
    number = await other.put(b"kept", 1)
    words = (b"put 0 0 0 5\r\n", b"put 0 0 0 99999999\r\n", b"\r\n", b"stats-job ", b"use a\r\n")
    for _ in range(30):
        talk = await site.dial()
        for _ in range(draw.randrange(6)):
            talk.send(draw.choice((draw.randbytes(draw.randrange(400)), draw.choice(words))))
        await talk.writer.drain()
        await talk.close()
    assert await other.body(f"peek {number}") == (b"FOUND %d" % number, b"kept")
    while len(site.server.context.peers.connections) > 1 or site.server.context.peers.closing:
        await asyncio.sleep(0.001)


async def test_half_a_job_takes_no_more_room_than_was_sent(site: BeanstalkdSite) -> None:
    talk = await site.dial()
    talk.send(b"put 0 0 0 4294967295\r\n")
    for _ in range(100):
        talk.send(b"x" * 65_536)
        await talk.writer.drain()
    (there,) = site.server.context.peers.connections
    assert isinstance(there, connection.JobConnection)
    other = await site.dial()
    assert await other.ask("list-tube-used") == b"USING default"


async def test_who_waits_and_sends_without_end_is_sent_away(site: BeanstalkdSite) -> None:
    talk = await site.dial()
    talk.send(b"reserve\r\n" + b"list-tube-used\r\n" * 10_000)
    with pytest.raises(ConnectionResetError):
        await talk.line()


async def test_others_have_their_turn_beside_who_sends_much_at_once(
    site: BeanstalkdSite,
) -> None:
    talk, other = await site.dial(), await site.dial()
    await talk.ask("use mine")
    await other.ask("use theirs")
    first, second = site.server.context.peers.connections
    calls = site.server.context.calls
    first.data_received(b"list-tube-used\r\n" * 1000)
    second.data_received(b"list-tubes-watched\r\n")
    assert calls["list-tubes-watched"] == 1
    assert calls["list-tube-used"] < 1000
    while calls["list-tube-used"] < 1000:
        await asyncio.sleep(0)


async def test_who_reads_nothing_is_not_read(site: BeanstalkdSite) -> None:
    talk, other = await site.dial(), await site.dial()
    number = await other.put(b"y" * 65_000)
    asked = 0
    talk.writer.transport.set_write_buffer_limits(high=0)
    while True:
        talk.send(b"peek %d\r\n" % number * 100)
        asked += 100
        try:
            async with asyncio.timeout(0.5):
                await talk.writer.drain()
        except TimeoutError:
            break
        assert asked < 1_000_000, "it is read for ever"
    assert await other.ask("list-tube-used") == b"USING default"


async def test_long_names_and_jobs_have_their_answers(node: Any) -> None:
    async with beanstalkd_site((await node()).queues, job_bytes=10) as site:
        talk = await site.dial()
        assert await talk.ask(b"put 0 0 1 11\r\n" + b"x" * 11) == b"JOB_TOO_BIG"
        assert await talk.put(b"x" * 10) > 0
        assert await talk.ask("use " + "+" * 100) == b"BAD_FORMAT"
        assert await talk.ask("watch " + "t" * 200) == b"WATCHING 2"
        assert (await talk.stats("stats"))["max-job-size"] == "10"


async def test_a_stop_ends_waits_and_lets_go_of_jobs(node: Any) -> None:
    queues = (await node()).queues
    async with beanstalkd_site(queues) as site:
        waiting, working = await site.dial(), await site.dial()
        number = await working.put()
        await working.reserve()
        waiting.send(b"reserve\r\n")
        while not site.server.stats()["waiting"]:
            await asyncio.sleep(0)
        stopping = asyncio.ensure_future(site.server.stop(20))
        assert await waiting.reader.read() in (b"", b"TIMED_OUT\r\n")
        assert await working.ask("put 0 0 1 1\r\nx") == b"DRAINING"
        assert await working.ask(f"delete {number}") == b"DELETED"
        assert await working.line() == b""
        await stopping


async def test_a_client_that_cannot_say_who_it_is_has_the_rights_of_the_doors_user(
    node: Any,
) -> None:
    jobs = replace(ADMIN, name="jobs", rights=("put:mail", "take:mail"))
    queues = (await node()).queues
    door = {"user": "jobs", "allow": ("127.0.0.0/8",)}
    async with beanstalkd_site(queues, users=(ADMIN, jobs), **door) as site:

        def work() -> bytes:
            address = ("127.0.0.1", site.server.port)
            with greenstalk.Client(address, use="mail", watch="mail", encoding=None) as client:
                client.put(b"by a stock client")
                job = client.reserve(timeout=20)
                client.delete(job)
                client.use("other")
                with pytest.raises(greenstalk.UnknownResponseError, match="DENIED"):
                    client.put(b"x")
                body: bytes = job.body
                return body

        assert await asyncio.to_thread(work) == b"by a stock client"
        talk = await site.dial()
        assert await talk.ask(f"auth admin {SECRET}") == b"OK"
        assert await talk.ask("use other") == b"USING other"
        assert await talk.put() > 0


@pytest.mark.parametrize(
    "door",
    [
        {"user": "jobs", "allow": ("10.0.0.0/8", "::1")},
        {"user": "jobs", "allow": ()},
        {"user": "nobody"},
        {},
    ],
)
async def test_from_elsewhere_or_as_nobody_it_has_none(node: Any, door: dict[str, Any]) -> None:
    jobs = replace(ADMIN, name="jobs")
    async with beanstalkd_site((await node()).queues, users=(ADMIN, jobs), **door) as site:
        talk = await site.dial()
        assert await talk.ask("list-tubes") == b"NOAUTH"
