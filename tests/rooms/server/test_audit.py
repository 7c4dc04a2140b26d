"""The audit log: what is noted at both doors, what is kept, and what it costs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.doors import doubles
from support.doors.beanstalkd_site import beanstalkd_site
from support.doors.http_site import ALICE, Site, site
from support.growth import entries
from support.inspect import audit_waiting_of as waiting_of
from support.manual_clock import ManualClock
from support.tokens.harness import eventually

from tidewarden.clock import SystemClock
from tidewarden.config.load import Audit, User, hash_generated
from tidewarden.errors import BadArg, NoQuorum, StoreDown
from tidewarden.server.audit import audit_log
from tidewarden.server.audit.audit_log import (
    ACCOUNTS_MAX,
    ALONE_MAX,
    READS_MAX,
    USERS_MAX,
    AuditLog,
)
from tidewarden.server.audit.entry_queue import WAITING_MAX

QUICK = Audit(window_s=0.05)


def opened(made: Any, settings: Audit = QUICK, node: str = "n0", **more: Any) -> AuditLog:
    call = more.pop("call", None) or made.link.call
    return AuditLog(call, "t", node, settings, more.pop("clock", SystemClock()))


async def noted(log: AuditLog, count: int = 1, **options: Any) -> list[dict[str, Any]]:
    """The entries, once there are so many."""

    async def there() -> list[dict[str, Any]] | None:
        found, _ = await log.page(count=1000, **options)
        return found if len(found) >= count else None

    return await eventually(there)


def shown(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry without what is another each time."""
    return {key: value for key, value in entry.items() if key not in ("at_ms", "since_ms", "peer")}


async def test_changes_are_written_at_once_and_reads_together(node: Any) -> None:
    log = opened(await node())
    async with log.running():
        log.change("ada", "10.0.0.1:5", "Q.PURGE", ["mails", "STATE", "ready"])
        (entry,) = await noted(log)
        assert entry.pop("at_ms") > 0
        assert entry == {
            "node": "n0",
            "user": "ada",
            "peer": "10.0.0.1:5",
            "action": "Q.PURGE",
            "words": ["mails", "STATE", "ready"],
        }
        for _ in range(3):
            log.read("ada", "p/a")
        log.read("ada", "p/b")
        log.read("bob", "p/a")
        log.account("ada", "", "T.PUT", "p/c")
        log.account("ada", "", "T.PUT", "p/d")
        log.account("ada", "", "T.PUT", "p/d")
        log.denied("eve", "10.0.0.2:5", "Q.PUT needs the right put:x")
        log.denied("eve", "10.0.0.2:6", "Q.PUT needs the right put:x")
        found = [shown(one) for one in (await noted(log, 5))[1:]]
        assert sorted(found, key=lambda one: (one["action"], one["user"])) == [
            {"node": "n0", "user": "eve", "action": "DENIED", "outcome": "DENIED", "count": 2,
             "words": ["Q.PUT needs the right put:x"]},
            {"node": "n0", "user": "ada", "action": "T.GET", "accounts": {"p/a": 3, "p/b": 1},
             "count": 4},
            {"node": "n0", "user": "bob", "action": "T.GET", "accounts": {"p/a": 1}},
            {"node": "n0", "user": "ada", "action": "T.PUT", "accounts": {"p/c": 1, "p/d": 2},
             "count": 3},
        ]  # fmt: skip
        assert [one["user"] for one in await noted(log, 1, user="eve")] == ["eve"]


async def test_what_is_left_is_written_at_the_end_and_pages_go_on(node: Any) -> None:
    made = await node()
    here, there = opened(made, Audit(window_s=3600)), opened(made, Audit(window_s=3600), "n1")
    async with here.running(), there.running():
        for number in range(2 * ACCOUNTS_MAX + 1):
            here.read("ada", f"p/{number}")
        there.read("bob", "p/1")
        for number in range(5):
            (here, there)[number % 2].change("ada", "", "Q.PAUSE", [str(number)])
    met, after = [], ""
    while True:
        page, behind = await here.page(after, 2)
        assert len(page) <= 2
        met += page
        if behind == after:
            break
        after = behind
    assert sorted(one["words"][0] for one in met if one["action"] == "Q.PAUSE") == list("01234")
    reads = [one["accounts"] for one in met if one["action"] == "T.GET" and one["user"] == "ada"]
    assert sorted(map(len, reads)) == [1, ACCOUNTS_MAX, ACCOUNTS_MAX]
    assert {one["node"] for one in met} == {"n0", "n1"}
    assert here.stats() == {"entries_total": 6, "lost_total": 0, "waiting": 0}
    for wrong in ({"after": "x"}, {"after": "1-1"}, {"count": 0}, {"count": 1001}):
        with pytest.raises(BadArg):
            await here.page(**wrong)


async def test_the_store_keeps_so_many_and_reads_push_out_no_change(node: Any) -> None:
    made = await node()
    log = opened(made, Audit(window_s=3600, kept=100, reads_kept=100))
    async with log.running():
        log.change("ada", "", "Q.PURGE", ["first"])
        for number in range(500 * ACCOUNTS_MAX):
            log.read("ada", f"p/{number}")
    assert len(await noted(log)) == 101
    assert shown((await noted(log, user="ada"))[0])["words"] == ["first"]
    assert await made.link.call("XLEN", "{t}:audit_reads") == 100


async def test_nobody_pushes_out_what_others_did(node: Any) -> None:
    made = await node()
    log = opened(made, Audit(window_s=3600, kept=100))
    async with log.running():
        for number in range(30):
            log.change("ada", "", f"VERB{number}", ["of ada"])
        for number in range(300):
            log.change("eve", "", f"VERB{number}", [str(number)])
        found = await noted(log, 100)
        while found[-1]["words"] != ["299"]:
            found = await noted(log, 100)
    assert len(found) == 100
    assert sum(one["user"] == "ada" for one in found) == 30
    # of her own the oldest went
    assert [one["words"] for one in found if one["user"] == "eve"] == [
        [str(number)] for number in range(230, 300)
    ]


async def test_a_stream_of_an_older_version_makes_room_from_its_beginning(node: Any) -> None:
    made = await node()
    for number in range(150):
        body = f'{{"at_ms":1,"node":"n0","user":"old","action":"Q.PURGE","words":["{number}"]}}'
        await made.link.call("XADD", "{t}:audit", "*", "entry", body)
    log = opened(made, Audit(window_s=3600, kept=100))
    async with log.running():
        for number in range(10):
            log.change("ada", "", "Q.PURGE", [str(number)])
        await noted(log, 1, user="ada")
    found = await noted(log)
    assert [one["user"] for one in found] == ["old"] * 90 + ["ada"] * 10
    assert found[0]["words"] == ["60"]
    assert await made.link.call("HGETALL", "{t}:audit:users") == [b"ada", b"10"]
    assert await made.link.call("LLEN", "{t}:audit:of:ada") == 10


async def test_what_is_repeated_is_counted(node: Any) -> None:
    log = opened(await node(), Audit(window_s=3600))
    async with log.running():
        for number in range(12_000):
            log.change("eve", f"10.0.0.1:{number}", "S.PAUSE", ["nothing"], "NOTFOUND")
            log.account("eve", f"10.0.0.1:{number}", "T.REFRESH", "p/a")
        log.change("eve", "", "S.PAUSE", ["daily"])
        log.change("ada", "", "S.PAUSE", ["nothing"], "NOTFOUND")
    found = await noted(log)
    together = [one for one in found if one.get("count", 1) > ALONE_MAX]
    assert [(one["action"], one["count"], one.get("words", [])) for one in together] == [
        ("T.REFRESH", 12_000 - ALONE_MAX, []),
        ("S.PAUSE", 12_000 - ALONE_MAX, ["nothing"]),
    ]
    assert sum(one.get("count", 1) for one in found if one["action"] == "S.PAUSE") == 12_002
    assert len(found) <= 2 * ALONE_MAX + 4


async def test_each_account_that_was_read_is_named(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "READS_MAX", 1000)
    log = opened(await node(), Audit(window_s=3600))
    async with log.running():
        for number in range(1000):
            log.read("eve", f"p/{number}")
        log.read("eve", "p/secret")
        log.read("ada", "p/secret")
    found = await noted(log)
    named = {(one["user"], account) for one in found for account in one["accounts"]}
    assert {("eve", "p/secret"), ("ada", "p/secret"), ("eve", "p/0")} <= named


async def test_a_token_that_is_asked_for_by_head_is_noted(node: Any) -> None:
    log = opened(await node(), Audit(window_s=3600))
    async with log.running(), doors(log) as (_, web):
        body = {"json": {"refresh_token": "r", "access_token": "a"}}
        assert (await web.ask("PUT", "/v1/tokens/p/b", headers=ALICE, **body))[0] == 200
        assert (await web.ask("HEAD", "/v1/tokens/p/b", headers=ALICE))[0] == 200
    assert [one["accounts"] for one in await noted(log) if one["action"] == "T.GET"] == [{"p/b": 1}]


async def test_a_store_that_is_away_is_waited_for(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "AGAIN_S", 0.01)
    made, away = await node(), [StoreDown("it is away")] * 3

    async def call(*words: Any) -> Any:
        if words[0] == "EVAL" and away:
            raise away.pop()
        return await made.link.call(*words)

    log = opened(made, call=call)
    async with log.running():
        log.change("ada", "", "Q.PURGE", ["q"])
        log.change("ada", "", "Q.PURGE", ["r"])
        assert {one["words"][0] for one in await noted(log, 2)} == {"q", "r"}
    assert not away


@pytest.mark.thorough
async def test_memory_is_bounded_whatever_is_noted() -> None:
    async def never(*_words: Any) -> Any:
        raise StoreDown("it is away")

    log = opened(None, Audit(window_s=3600), call=never, clock=ManualClock())
    for number in range(READS_MAX + 1000):
        log.read("ada", f"p/{number}")
        log.change("ada", "", "Q.PURGE", ["q"] * 100)
        log.account(f"u{number}", "", "T.PUT", "p/a")
        log.denied("ada", "", f"reason {number}")
    assert entries(log) < 2 * READS_MAX + WAITING_MAX + USERS_MAX + 500
    log.change("bob", "", "Q.PURGE", ["x" * 1000] * 100)
    (entry,) = (one for one in waiting_of(log).take(WAITING_MAX + 1) if one.user == "bob")
    assert (entry.user, len(entry.body) < 16 * 200 + 200) == ("bob", True)


@contextlib.asynccontextmanager
async def doors(log: AuditLog, *rights: str) -> AsyncIterator[tuple[Any, Site]]:
    """A line at a RESP door, and an HTTP door, that note there."""
    user = User(name="admin", secret_hash=hash_generated(doubles.SECRET), rights=rights or ("all",))
    async with (
        site(users=True, rights=user.rights, audit=log) as over_http,
        doubles.Door(users=(user,), audit=log) as door,
    ):
        door.server.users.on_denied = log.denied
        line = await door.dial()
        assert await line.call("AUTH", "admin", doubles.SECRET) == b"OK"
        yield line, over_http


async def test_what_is_noted_at_both_doors_and_never_a_secret(node: Any) -> None:
    log = opened(await node(), Audit(window_s=3600))
    secret = "s3cret"
    async with log.running(), doors(log) as (line, web):
        for request in (
            ("T.PUT", "p/a", f'{{"refresh_token": "{secret}"}}'),
            ("T.GET", "p/a"),
            ("T.GET", "p/nobody"),
            ("T.MGET", "p/b", "p/nobody", "p/a"),
            ("T.CONNECT", "p/a", "SCOPE", "read"),
            ("T.DEVICE", "p/a"),
            ("T.DELETE", "p/a"),
            ("T.ANSWERS", "p/a"),
            ("T.EXPORT", secret.encode().hex(), "00", "1"),
            ("T.IMPORT", secret.encode().hex(), "00", "1", secret),
            ("T.PROVIDER", "release", "p"),
            (
                "P.PUT",
                "p",
                f'{{"client_secret": "{secret}", "token_url": "https://u:{secret}@a.example/{secret}",'
                f' "proxy": "http://u:{secret}@b.example:3128"}}',
            ),
            ("P.GET", "p"),
            ("P.DELETE", "p"),
            ("Q.CONFIG", "q"),
            ("Q.CONFIG", "q", "SET", "lease_ms", "5"),
            ("Q.PURGE", "q"),
            ("Q.KICK", "q", "ID", "payload", "PAYLOAD", secret),
            ("Q.PUT", "q", secret),
            ("S.PUT", "daily", "EVERY", "1000", "q", secret),
            ("R.JOIN", "n3", "h:1"),
            ("V.ROTATE",),
        ):
            await line.call(*request)
        for method, path, more in (
            ("PUT", "/v1/tokens/p/b", {"json": {"refresh_token": secret}}),
            ("GET", "/v1/tokens/p/b", {}),
            ("GET", "/v1/tokens/p/nobody", {}),
            ("POST", "/v1/tokens:read", {"json": {"accounts": ["p/b", "p/nobody"]}}),
            ("DELETE", "/v1/tokens/p/nobody", {}),
            ("POST", "/v1/providers/p/probe", {}),
            (
                "PUT",
                "/v1/providers/q/settings",
                {
                    "json": {
                        "client_secret": secret,
                        "issuer": "https://c.example/x",
                        "preset": "google",
                    }
                },
            ),
            ("DELETE", "/v1/providers/nobody/settings", {}),
            (
                "PUT",
                "/v1/schedules/s",
                {"json": {"every_ms": 1000, "queue": "q", "payload": secret}},
            ),
            ("GET", "/v1/schedules", {}),
            (
                "PUT",
                "/v1/schedules/s",
                {"json": {"every_ms": "x", "queue": "q", "payload": secret}},
            ),
            ("PUT", "/v1/tokens/p/b", {"json": [secret]}),
            ("POST", "/v1/queues/q/buried/kick", {"json": {"id": "a", "payload": secret}}),
            ("POST", "/v1/queues/q/buried/kick", {"json": {"all": True, "reason": "no"}}),
        ):
            await web.ask(method, path, headers=ALICE, **more)
    found = await noted(log)
    assert secret not in str(found)
    assert {one["user"] for one in found} == {"admin"}
    assert all(
        one.get("peer", "").startswith("127.0.0.1:") for one in found if "since_ms" not in one
    )
    lines = [
        (one["action"], one.get("outcome", "ok"), *one.get("words", []), *one.get("accounts", {}).items())
        for one in found
    ]  # fmt: skip
    assert sorted(line for line in lines if "T.GET" not in line) == sorted([
        ("T.PUT", "ok", ("p/a", 1)),
        ("T.CONNECT", "ok", ("p/a", 1)),
        ("T.DEVICE", "ok", ("p/a", 1)),
        ("T.DELETE", "ok", ("p/a", 1)),
        ("T.ANSWERS", "ok", ("p/a", 1)),
        ("T.EXPORT", "ok", ("p/a", 1)),
        ("T.IMPORT", "ok", ("p/a", 1)),
        ("T.PROVIDER", "ok", "release", "p"),
        ("P.PUT", "ok", "p", "token_url https://a.example", "proxy http://b.example:3128"),
        ("P.DELETE", "ok", "p"),
        ("P.PUT", "ok", "q", "issuer https://c.example", "preset google"),
        ("P.DELETE", "NOTFOUND", "nobody", "DELETE /v1/providers/nobody/settings"),
        ("Q.CONFIG", "ok", "q", "SET", "lease_ms", "5"),
        ("Q.PURGE", "ok", "q"),
        ("Q.KICK", "ok", "q", "ID", "payload", "…", "…"),
        ("Q.KICK", "ok", "q", '{"id":"a","payload":"…"}'),
        ("Q.KICK", "ok", "q", '{"all":true,"reason":"no"}'),
        ("S.PUT", "ok", "daily"),
        ("R.JOIN", "ok", "n3", "h:1"),
        ("V.ROTATE", "ok"),
        ("T.PUT", "ok", ("p/b", 1)),
        ("T.DELETE", "NOTFOUND", ("p/nobody", 1)),
        ("T.PROVIDER", "ok", "p", "POST /v1/providers/p/probe"),
        ("S.PUT", "ok", "s"),
    ])  # fmt: skip
    (reads,) = [one["accounts"] for one in found if one["action"] == "T.GET"]
    assert reads == {"p/a": 2, "p/b": 3}


async def test_denied_requests_are_noted_and_the_log_is_for_administrators(node: Any) -> None:
    log = opened(await node())
    async with log.running(), doors(log, "token:read:p/a") as (line, web):
        for _ in range(20):
            assert str(await line.call("T.GET", "p/b")).startswith("DENIED")
        assert str(await line.call("R.AUDIT")).startswith("DENIED R.AUDIT needs the right admin")
        assert (await web.ask("GET", "/v1/audit", headers=ALICE))[0] == 403
        found = await noted(log)
        assert "token:read:p/b" in found[0]["words"][0]
        assert len(found) <= 4
    async with doors(log, "admin") as (line, web):
        page, after = await line.call("R.AUDIT", "USER", "admin")
        assert {b"DENIED"} <= {
            dict(zip(one[::2], one[1::2], strict=True))[b"action"] for one in page
        }
        status, told = await web.ask("GET", "/v1/audit", headers=ALICE)
        assert (status, told["after"]) == (200, after.decode())
        assert told["entries"] == await noted(log)
        status, told = await web.ask("GET", f"/v1/audit?after={told['after']}", headers=ALICE)
        assert told == {"entries": [], "after": after.decode()}
        for wrong in ("after=x", "count=0", "count=x", "since=1"):
            assert (await web.ask("GET", f"/v1/audit?{wrong}", headers=ALICE))[0] == 400


async def test_what_failed_is_noted_with_its_word(node: Any) -> None:
    log = opened(await node())
    async with log.running(), doubles.Door(users=(doubles.ADMIN,), audit=log) as door:
        line = await door.dial()
        assert await line.call("AUTH", "admin", doubles.SECRET) == b"OK"

        async def purge(*_: Any, **__: Any) -> int:
            raise NoQuorum("not confirmed")

        door.queues.purge = purge
        assert str(await line.call("Q.PURGE", "q")).startswith("NOQUORUM")
        assert str(await line.call("Q.PURGE", "q", "STATE")).startswith("BADARG")
        (entry,) = await noted(log)
        assert (entry["outcome"], entry["words"]) == ("NOQUORUM", ["q"])


async def test_where_nothing_is_noted_the_log_says_so() -> None:
    async with site(users=True) as subject:
        status, body = await subject.ask("GET", "/v1/audit", headers=ALICE)
        assert (status, body["error"]) == (500, "ERR")
        assert "audit.enabled" in body["message"]


async def test_the_beanstalkd_door_notes_what_the_verbs_do(node: Any) -> None:
    made = await node()
    log = opened(made)
    async with log.running(), beanstalkd_site(made.queues, audit=log) as door:
        talk = await door.dial()
        await talk.ask("use mails")
        number = await talk.put(delay_s=100)
        for line in ("pause-tube mails 7", "pause-tube mails 0", "kick 3", f"kick-job {number}"):
            await talk.ask(line)
        found = [(one["action"], one["words"]) for one in await noted(log, 4)]
        assert found == [
            ("Q.PAUSE", ["mails", "MS", "7000"]),
            ("Q.RESUME", ["mails"]),
            ("Q.KICK", ["mails", "COUNT", "3"]),
            ("Q.KICK", ["mails", "ID", f"{number:019d}"]),
        ]
