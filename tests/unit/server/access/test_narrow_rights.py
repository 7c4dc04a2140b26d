"""
A user whose rights are to some names alone, before every verb and every route.

A verb or route without an entry here fails the test.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from support.doors import doubles
from support.doors.http_site import ALICE, site

from tidewarden.config.load import User, hash_generated
from tidewarden.config.rights import NAME_WORDS, QUEUE_WORDS, TOKEN_WORDS
from tidewarden.server.http.authorization import ROUTES
from tidewarden.server.verbs.table import COMMANDS

RIGHTS = (
    *(f"{word}:mine*" for word in (*QUEUE_WORDS, *NAME_WORDS)),
    *(f"{word}:shop/mine*" for word in TOKEN_WORDS),
    *(f"{word}:whole" for word in TOKEN_WORDS),
)
USER = User(name="ada", secret_hash=hash_generated(doubles.SECRET), rights=RIGHTS)

VERBS = """
Q.PUT NAME body
Q.WAIT NAME id 0
Q.TAKE FROM NAME
Q.TAKE FROM mine NAME
Q.ACK NAME id 1
Q.RELEASE NAME id 1
Q.FAIL NAME id 1
Q.TOUCH NAME id 1
Q.BURY NAME id 1
Q.PEEK NAME id
Q.PEEK NAME STATE ready MATCH *
Q.REASONS NAME
Q.UPDATE NAME id PRIORITY 3
Q.DELETE NAME id
Q.KICK NAME COUNT 1
Q.KICK NAME ID id PAYLOAD x
Q.PAUSE NAME
Q.RESUME NAME
Q.PURGE NAME
Q.PURGE NAME STATE buried REASON x
Q.RELEASEALL NAME
Q.HOLDERS NAME
Q.DROP NAME FORCE
Q.DROPTOPIC NAME
Q.MOVE NAME COUNT 1 TO mine
Q.MOVE mine COUNT 1 TO NAME
Q.LINK mine.topic NAME
Q.UNLINK NAME mine
Q.CONFIG NAME
Q.CONFIG NAME SET lease_ms 5
Q.CHECK NAME
Q.STATS NAME
L.ACQUIRE NAME 5
L.RENEW NAME 1 5
L.RELEASE NAME 1
L.PEEK NAME
S.PUT NAME EVERY 1000 mine body
S.PUT mine EVERY 1000 NAME body
S.DELETE NAME
S.PAUSE NAME
S.RESUME NAME
S.RUN NAME
S.GET NAME
T.GET ACCOUNT
T.PEEK ACCOUNT
T.WHY ACCOUNT
T.WHY PROVIDER
T.ANSWERS ACCOUNT
T.PUT ACCOUNT {}
T.CONNECT ACCOUNT
T.DEVICE ACCOUNT
T.REFRESH ACCOUNT
T.DELETE ACCOUNT
T.PROVIDER RELEASE PROVIDER
P.PUT PROVIDER {}
P.GET PROVIDER
P.DELETE PROVIDER
"""
"""What each verb is asked for a name, an account, a provider: one of the user's, then another."""
REQUESTS = [line.split() for line in VERBS.strip().splitlines()]
MINE = {"NAME": "mine.a", "ACCOUNT": "shop/mine1", "PROVIDER": "whole"}
ELSE = {"NAME": "other", "ACCOUNT": "shop/other", "PROVIDER": "shop"}
EVERYTHING = {
    *("V.STATUS", "V.ROTATE", "CLIENT"),
    *("R.TRANSFER", "R.JOIN", "R.LEAVE", "R.BACKUP", "R.SWITCHOVER", "R.RECOVER"),
    *("R.CONFIRM", "R.DISCARDED", "R.TRAFFIC", "R.TAP", "R.AUDIT"),
}
"""Verbs that need a right to everything there is: such a user is refused."""
OWN_PART = {"T.MGET", "T.LIST", "T.STATS", "T.EXPORT", "T.IMPORT", "P.LIST"}
"""Verbs that answer such a user with its own part; each has a test of its own below."""
FILLED = {"{queue}": "NAME", "{topic}": "NAME", "{lock}": "NAME", "{name}": "NAME"}


def filled(words: list[str], names: dict[str, str]) -> list[str]:
    return [names.get(word, word) for word in words]


def test_every_verb_that_needs_a_right_has_an_entry() -> None:
    needing = {command.name for command in COMMANDS.values() if command.permission.words}
    assert needing == {words[0] for words in REQUESTS} | EVERYTHING | OWN_PART


async def test_every_verb_for_a_name_of_the_users_and_for_another() -> None:
    async with doubles.Door(users=(USER,)) as door:
        line = await door.dial()
        assert await line.call("AUTH", "ada", doubles.SECRET) == b"OK"
        for words in REQUESTS:
            reply = str(await line.call(*filled(words, MINE)))
            assert not reply.startswith("DENIED"), (words, reply)
            rooms = (door.queues, door.tokens, door.schedules, door.locks)
            before = [len(room.calls) for room in rooms]
            denied, named = filled(words, ELSE), set(words) & set(ELSE)
            reply = str(await line.call(*denied))
            assert reply.startswith(f"DENIED {words[0]} needs the right "), (words, reply)
            assert all(f":{ELSE[name]}" in reply for name in named), (words, reply)
            assert before == [len(room.calls) for room in rooms], words
        for verb in EVERYTHING - {"CLIENT"}:
            command = COMMANDS[verb.encode()]
            reply = str(await line.call(verb, *["x"] * (command.least - 1)))
            assert reply.startswith(f"DENIED {verb} needs the right "), reply


async def test_lists_have_the_users_own_accounts_alone() -> None:
    async with doubles.Door(users=(USER,)) as door:

        async def stats() -> dict[str, Any]:
            return {"shop": {"total": 3}, "whole": {"total": 2}, "bank": {"total": 1}}

        async def export(*_: Any, exported: Any, **_more: Any) -> Any:
            return [name.encode() for name in ACCOUNTS if exported.allow(name)], "", []

        async def import_sealed(_sealing: Any, _lines: Any, written: Any, _told: Any) -> Any:
            return [int(written.allow(name)) for name in ACCOUNTS]

        async def listing(seen: Any) -> Any:
            return [{"account": name} for name in ACCOUNTS if seen.allow(name)], ""

        door.tokens.stats, door.tokens.list = stats, listing
        door.tokens.custody.export = export
        door.tokens.custody.import_sealed = import_sealed
        line = await door.dial()
        assert await line.call("AUTH", "ada", doubles.SECRET) == b"OK"
        assert (await line.call("T.STATS"))[::2] == [b"whole"]
        assert [one[1] for one in await line.call("P.LIST")] == [b"whole"]
        assert [row[1].decode() for row in (await line.call("T.LIST"))[0]] == OWN
        assert (await line.call("T.EXPORT", "00", "00", "1"))[0] == [n.encode() for n in OWN]
        assert await line.call("T.IMPORT", "00", "00", "1", "x") == [1, 0, 1, 0]
        one, two, three = await line.call("T.MGET", "shop/mine1", "bank/mine1", "whole/nobody")
        assert one[0] == b"at-1"
        assert two.decode() == (
            "DENIED T.MGET needs the right token:read:bank/mine1, which the user ada does not have."
        )
        assert three.startswith(b"NOTFOUND")
        assert door.tokens.calls == [("get_many", ["shop/mine1", "whole/nobody"], 0, 0)]
        assert door.server.own_stats()["denied_total"] == {"ada": 1}
        assert [(await line.call("T.MGET", "bank/a"))[0][:6]] == [b"DENIED"]


ACCOUNTS = ["shop/mine1", "shop/other", "whole/a", "bank/mine1"]
OWN = ["shop/mine1", "whole/a"]


async def test_who_has_a_right_to_no_account_is_refused_what_lists_them() -> None:
    user = User(name="ada", secret_hash=hash_generated(doubles.SECRET), rights=("put",))
    async with doubles.Door(users=(user,)) as door:
        line = await door.dial()
        assert await line.call("AUTH", "ada", doubles.SECRET) == b"OK"
        for verb in OWN_PART:
            least = COMMANDS[verb.encode()].least
            reply = str(await line.call(verb, *["00"] * (least - 1)))
            assert reply.startswith(f"DENIED {verb} needs the right token:"), reply


ROUTES_OF_NONE = {
    "GET /v1/audit": 403,
    "GET /v1/tokens": 200,
    "POST /v1/tokens:read": 400,
    "GET /v1/providers": 200,
    "GET /v1/providers/settings": 200,
    "GET /v1/events": 400,
    "GET /v1/forecast": 200,
    "POST /v1/take": 400,
    "GET /v1/traffic": 404,  # of a node that counts none
    "GET /v1/tap": 404,
    "POST /v1/check": 403,
    "POST /v1/consumers/close": 403,
    **{
        f"POST /v1/cluster/{how}": 403
        for how in ("transfer", "join", "leave", "switchover", "recover", "confirm", "backups")
    },
    "GET /v1/cluster/discarded": 403,
}
"""Routes whose paths name nothing: what such a user is answered who sends no body, or a wrong one."""


@pytest.mark.parametrize("route", ROUTES.values(), ids=lambda route: f"{route.method} {route.path}")
async def test_every_route_for_a_name_of_the_users_and_for_another(route: Any) -> None:
    if not route.permission.words:
        return
    what = f"{route.method} {route.path}"
    async with site(users=True, rights=RIGHTS) as subject:
        if "{" not in route.path:
            query = "?types=none" if what == "GET /v1/events" else ""
            status, _ = await subject.ask(route.method, route.path + query, headers=ALICE)
            assert status == ROUTES_OF_NONE[what]
            return
        for names, denied in ((MINE, False), (ELSE, True)):
            path = route.path.replace("{provider}/{account}", names["ACCOUNT"])
            path = path.replace("{provider}", names["PROVIDER"])
            for field in FILLED:
                path = path.replace(field, names["NAME"])
            path = re.sub(r"\{(id|backup)\}", "a", path)
            denied = denied or "{backup}" in route.path
            status, body = await subject.ask(route.method, path, headers=ALICE)
            assert (status == 403) is denied, (path, status, body)


@pytest.mark.parametrize(
    ("path", "body", "right"),
    [
        ("/v1/take", {"queues": ["NAME"]}, "take:other"),
        ("/v1/take", {"queues": ["mine.b", "NAME"]}, "take:other"),
        ("/v1/queues/mine.b/buried/move", {"to": "NAME", "count": 1}, "admin:other"),
        (
            "/v1/schedules/mine.s",
            {"every_ms": 1000, "queue": "NAME", "payload": "x"},
            "put:other",
        ),
    ],
)
async def test_a_name_in_a_body_needs_its_right_too(
    path: str, body: dict[str, Any], right: str
) -> None:
    method = "PUT" if path.startswith("/v1/schedules") else "POST"
    async with site(users=True, rights=RIGHTS) as subject:
        for names, denied in ((MINE, False), (ELSE, True)):
            told = json.loads(json.dumps(body).replace("NAME", names["NAME"]))
            before = list(subject.door.queues.calls)
            status, found = await subject.ask(method, path, headers=ALICE, json=told)
            assert status == (403 if denied else 200), (told, found)
            if denied:
                assert f"needs the right {right}," in found["message"]
                assert subject.door.queues.calls == before, "nothing was done"


@pytest.mark.parametrize("word", ["token:admin", "token:export"])
async def test_who_puts_a_provider_needs_the_rights_to_administer_and_to_export(word: str) -> None:
    """Where its refresh tokens are sent to, they can be read."""
    async with site(users=True, rights=(f"{word}:p",)) as subject:
        path = "/v1/providers/p/settings"
        status, found = await subject.ask("PUT", path, headers=ALICE, json={})
        assert status == 403
        lacks = {"token:admin", "token:export"} - {word}
        assert f"needs the right {lacks.pop()}:p" in found["message"]
        assert (await subject.ask("GET", path, headers=ALICE))[0] == (
            200 if word == "token:admin" else 403
        )
        status, found = await subject.ask("GET", "/v1/providers/settings", headers=ALICE)
        assert status == (200 if word == "token:admin" else 403)
        assert status == 403 or [one["provider"] for one in found["providers"]] == ["p"]


async def test_many_tokens_at_once_and_lists_over_http() -> None:
    async with site(users=True, rights=("token:read:p/a", "token:write:q")) as subject:
        body = {"accounts": ["p/a", "p/b", "q/a"]}
        status, found = await subject.ask("POST", "/v1/tokens:read", headers=ALICE, json=body)
        assert status == 200
        one, two, three = found["tokens"]
        assert one["access_token"] == "at-1"
        assert (two["error"], three["error"]) == ("DENIED", "DENIED")
        assert "the right token:read:p/b, which the user admin" in two["message"]
        assert (await subject.ask("GET", "/v1/tokens", headers=ALICE))[1]["accounts"]
        assert (await subject.ask("GET", "/v1/providers", headers=ALICE))[1] == {"providers": []}
        status, text = await subject.ask("GET", "/metrics", headers=ALICE)
        assert "tidewarden_tokens_figures_age_seconds" in text
        assert 'provider="p"' not in text
    async with site(users=True, rights=("token:read:p",)) as subject:
        found = (await subject.ask("GET", "/v1/providers", headers=ALICE))[1]
        assert [row["provider"] for row in found["providers"]] == ["p"]
        text = (await subject.ask("GET", "/metrics", headers=ALICE))[1]
        assert 'tidewarden_tokens_accounts{kind="fresh",provider="p"} 2.0' in text
        assert "tidewarden_tokens_journal_pending" not in text
    async with site(users=True, rights=("token:read:q",)) as subject:
        assert (await subject.ask("GET", "/v1/tokens", headers=ALICE))[1]["accounts"] == []
