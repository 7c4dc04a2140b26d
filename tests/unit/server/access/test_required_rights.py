"""Which rights a request needs, at the RESP door."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.doors import doubles

from tidewarden.config.load import User, hash_generated
from tidewarden.config.rights import Rights, parse
from tidewarden.server.access.required_rights import missing_for
from tidewarden.server.http.authorization import OPEN_PATHS, ROUTES, USER_PREFIXES
from tidewarden.server.verbs.table import COMMANDS

SECRET = doubles.SECRET
TABLE = """
Q.PUT mails.x body                              | put:mails.x
Q.PUT mails.x body ID a WAIT 5                  | put:mails.x
Q.WAIT q id 0                                   | put:q or admin:q
Q.TAKE FROM q                                   | take:q
Q.TAKE COUNT 3 WAIT 5 FROM q r                  | take:q
Q.ACK q id 1                                    | take:q
Q.ACK q id 1 id 2                               | take:q
Q.RELEASE q id 1                                | take:q
Q.FAIL q id 1                                   | take:q
Q.TOUCH q id 1                                  | take:q
Q.BURY q id 1                                   | take:q
Q.PEEK q id                                     | take:q or admin:q
Q.PEEK q STATE ready                            | take:q or admin:q
Q.PEEK q STATE ready MATCH *x* WHERE $.a=1      | take:q or admin:q
Q.REASONS q                                     | take:q or admin:q
Q.UPDATE q id PRIORITY 3                        | admin:q
Q.UPDATE q id PAYLOAD LEASE                     | admin:q
Q.UPDATE q id PRIORITY 3 LEASE 0                | admin:q
Q.UPDATE q id PRIORITY 3 LEASE 7                | take:q or admin:q
Q.DELETE q id                                   | admin:q
Q.DELETE q id FORCE                             | admin:q
Q.DELETE q id LEASE 0                           | admin:q
Q.DELETE q id lease 7                           | take:q or admin:q
Q.KICK q COUNT 1                                | admin:q
Q.KICK q ID id PAYLOAD x                        | admin:q
Q.PAUSE q                                       | admin:q
Q.RESUME q                                      | admin:q
Q.PURGE q                                       | admin:q
Q.PURGE q STATE buried REASONIS TO              | admin:q
Q.RELEASEALL q                                  | admin:q
Q.RELEASEALL q HOLDER n0.1                      | admin:q
Q.HOLDERS q                                     | admin:q
Q.DROP q FORCE                                  | admin:q
Q.DROPTOPIC topic                               | admin:topic
Q.MOVE q COUNT 1 TO r                           | admin:q
Q.MOVE q REASON TO TO r ALL                     | admin:q
Q.LINK topic q                                  | admin:topic
Q.UNLINK topic q                                | admin:topic
Q.CONFIG q                                      | put:q or take:q or stats:q or admin:q
Q.CONFIG q SET lease_ms 5                       | admin:q
Q.CHECK                                         | admin
Q.CHECK *                                       | admin
Q.CHECK q REPAIR                                | admin:q
Q.STATS q                                       | put:q or take:q or stats:q or admin:q
Q.STATS                                         |
Q.LIST                                          |
Q.LIST TOPICS                                   |
T.GET p/a                                       | token:read:p/a
T.LIST                                          | token:read or token:write or token:admin
T.STATS                                         | token:read or token:write or token:admin
T.PEEK p/a                                      | token:read:p/a or token:write:p/a or token:admin:p/a
T.MGET p/a                                      | token:read
T.WHY p/a                                       | token:read:p/a or token:write:p/a or token:admin:p/a
T.WHY p                                         | token:read:p or token:write:p or token:admin:p
T.PROVIDER RELEASE p                            | token:admin:p
P.GET p                                         | token:admin:p
P.LIST                                          | token:admin
P.DELETE p                                      | token:admin:p
P.PUT p {}                                      | token:admin:p
T.IMPORT 00 00 1 x                              | token:write
T.EXPORT 00 00 1                                | token:export
T.ANSWERS p/a                                   | token:export:p/a
V.STATUS                                        | token:read or token:write or admin
V.ROTATE                                        | admin
T.PUT p/a {}                                    | token:write:p/a
T.CONNECT p/a                                   | token:write:p/a
T.DEVICE p/a                                    | token:write:p/a
T.REFRESH p/a                                   | token:write:p/a
T.DELETE p/a                                    | token:write:p/a
L.ACQUIRE job 5                                 | lock:job
L.RENEW job 1 5                                 | lock:job
L.RELEASE job 1                                 | lock:job
L.PEEK job                                      | lock:job
L.LIST                                          |
S.PUT daily EVERY 1000 CATCHUP none q body      | schedule:daily
S.DELETE daily                                  | schedule:daily
S.PAUSE daily                                   | schedule:daily
S.RESUME daily                                  | schedule:daily
S.RUN daily                                     | schedule:daily
S.GET daily                                     | schedule:daily
S.NEXT                                          |
S.LIST                                          |
R.STATUS                                        |
R.TRANSFER                                      | admin
R.JOIN n3 h:1                                   | admin
R.LEAVE n3                                      | admin
R.BACKUP                                        | admin
R.SWITCHOVER n1                                 | admin
R.RECOVER ACCEPTLOSS                            | admin
R.CONFIRM                                       | admin
R.DISCARDED                                     | admin
R.TRAFFIC                                       | admin
R.TAP MS 5                                      | admin
R.AUDIT                                         | admin
R.CONSUMERS                                     |
CLIENT LIST                                     | admin
CLIENT KILL USER ada                            | admin
SESSION END x                                   |
CLIENT ID                                       |
PING                                            |
INFO                                            |
"""
ROWS = [
    (row[0].split(), row[2].strip())
    for line in TABLE.strip().splitlines()
    if (row := line.partition("|"))
]


def lacks(rights: Rights, request: list[Any]) -> str:
    """What is missing for a request, by the permission in its verb's row."""
    words = [word if isinstance(word, bytes) else word.encode() for word in request]
    return missing_for(rights, COMMANDS[words[0]].permission, words)


def user(*rights: str) -> User:
    return User(name="ada", secret_hash=hash_generated(SECRET), rights=rights)


async def enter(door: Any) -> Any:
    line = await door.dial()
    assert await line.call("AUTH", "ada", SECRET) == b"OK"
    return line


@pytest.mark.parametrize(
    ("request_", "missing"), ROWS, ids=lambda value: " ".join(value) or "no right"
)
def test_each_verb_needs_what_the_table_says(request_: list[str], missing: str) -> None:
    assert lacks(Rights(()), request_) == missing
    for word in missing.split(" or ") if missing else ():
        words = (parse(word)[0],)
        assert lacks(Rights(words), request_) in (
            "",
            "put:q",
            "token:export:p",
        )


EVERY = {
    "put",
    "take",
    "stats",
    "admin",
    "lock",
    "schedule",
    "token:read",
    "token:write",
    "token:export",
    "token:admin",
}


def words_of(missing: str) -> set[str]:
    return {parse(word)[0] for word in missing.split(" or ")}


@pytest.mark.parametrize("missing", sorted({missing for _, missing in ROWS if missing}))
async def test_at_the_door_each_verb_with_each_right_missing_and_with_it_alone(
    missing: str,
) -> None:
    """
    All rights but these: refused before anything happens. One of these alone: the verb gets
    through, or lacks another.
    """
    words, requests = words_of(missing), [request for request, lacks in ROWS if lacks == missing]
    names = {f"only-{number}": (word,) for number, word in enumerate(sorted(words))} | {
        "not": tuple(EVERY - words)
    }
    users = tuple(
        User(name=name, secret_hash=hash_generated(SECRET), rights=rights)
        for name, rights in names.items()
    )
    async with doubles.Door(users=users) as door:
        for name in names:
            line = await door.dial()
            assert await line.call("AUTH", name, SECRET) == b"OK"
            for request in requests:
                before = [
                    len(room.calls)
                    for room in (door.queues, door.tokens, door.schedules, door.locks)
                ]
                reply = str(await line.call(*request))
                denied = reply.startswith("DENIED ")
                if name == "not":
                    assert (
                        reply
                        == f"DENIED {request[0]} needs the right {missing}, which the user not does"
                        " not have."
                    )
                    assert before == [
                        len(room.calls)
                        for room in (door.queues, door.tokens, door.schedules, door.locks)
                    ]
                else:
                    assert not denied or missing not in reply, (name, request, reply)


def test_every_name_in_a_request_counts() -> None:
    rights = Rights(("take:q", "admin:q", "put:a", "schedule:s"))
    assert lacks(rights, b"Q.TAKE WAIT 5 FROM q r".split()) == "take:r"
    assert lacks(rights, b"Q.MOVE q REASON TO TO r ALL".split()) == "admin:TO"
    assert lacks(rights, b"Q.MOVE q ALL to r".split()) == "admin:r"
    assert lacks(rights, b"Q.LINK q r".split()) == "admin:r"
    assert lacks(rights, b"S.PUT s AT 5 b x".split()) == "put:b"
    assert lacks(rights, b"S.PUT s AT 5 a x".split()) == ""


def test_each_verb_and_each_route_names_its_permission() -> None:
    """A verb of the rooms behind needs a login at least; open is what its row says to be open."""
    for command in COMMANDS.values():
        permission = command.permission
        assert command.level == permission.level
        assert (permission.required is None) == (permission.level in ("open", "login"))
        assert (permission.required is None) == (not permission.words), command.name
        assert permission.level != "open" or "." not in command.name
        own_rule = permission.required and not permission.required.__module__.endswith(
            "required_rights"
        )
        assert not own_rule or command.name in {request[0] for request, _ in ROWS}, (
            f"what {command.name} needs depends on its request: it stands in the table above"
        )
    for request, missing in ROWS:
        words = COMMANDS[request[0].encode()].permission.words
        assert words_of(missing) <= words if missing else True, request
    opened = {path for (_, path), route in ROUTES.items() if route.permission.level == "open"}
    console = {"/", "/console/{file}", "/console/login", "/console/logout"}
    probes = {"/health/live", "/health/ready", "/leader"}
    browsers = {
        "/v1/connect/{provider}/{account}",
        "/v1/connect/callback",
        "/v1/connect/put-callback/{provider}",
    }
    known = {*probes, *console, *browsers, "/v1/openapi.json"}
    assert opened == set(OPEN_PATHS) == known


def test_the_protocol_has_the_same_table() -> None:
    """Each verb stands in the row of every right that is good for it, and in no other."""
    text = (Path(__file__).parents[4] / "docs" / "protocol.md").read_text("utf-8")
    told: dict[str, set[str]] = {}
    for row in text.partition("| right | verbs |")[2].partition("\n\n")[0].splitlines()[2:]:
        right, verbs = row.strip("| ").split(" | ", 1)
        words = words_of(right.strip("`").removesuffix("` for every queue")) - {"all", "none"}
        words |= (
            EVERY & {"put", "take", "admin"} if words == {"stats"} else set()
        )  # "each of the three above includes it"
        for verb in re.findall(r"\b[PQLSTVR]\.[A-Z]+|CLIENT LIST", verbs):
            told.setdefault(verb.split()[0], set()).update(words)
    told["S.PUT"].add("put")  # for its queue, says the row of schedules
    needed = {
        command.name: set(command.permission.words)
        for command in COMMANDS.values()
        if command.permission.words and command.group != "later"
    }
    assert {verb: words for verb, words in told.items() if words} == needed


def test_every_route_of_tokens_needs_a_user_also_where_nothing_else_does() -> None:
    for (_, path), route in ROUTES.items():
        needs = (
            route.verb.startswith(("T.", "P.")) or route.verb == "R.AUDIT"
        )  # which names accounts
        assert path.startswith(USER_PREFIXES) == needs, path


async def test_a_right_that_is_missing_is_named_counted_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with doubles.Door(users=(user("put:mails.*"),)) as door:
        line = await enter(door)
        assert await line.call("Q.PUT", "mails.a", "body")
        for _ in range(3):
            refusal = str(await line.call("q.put", "other", "body"))
            assert (
                refusal
                == "DENIED Q.PUT needs the right put:other, which the user ada does not have."
            )
        assert await line.call("PING") == b"PONG"
        assert [call[1] for call in door.queues.calls] == ["mails.a"]
        assert door.server.own_stats()["denied_total"] == {"ada": 3}
    assert caplog.text.count("request denied") == 1  # a second has not gone by


async def test_in_a_multi_too(caplog: pytest.LogCaptureFixture) -> None:
    async with doubles.Door(users=(user("put:mails.*"),)) as door:
        line = await enter(door)
        line.send("MULTI", "Q.PUT other body", "EXEC")
        assert [str(await line.reply()).partition(" ")[0] for _ in range(3)] == [
            "b'OK'",
            "DENIED",
            "EXECABORT",
        ]
        assert not door.queues.calls


async def test_a_request_of_a_wrong_form_is_told_so() -> None:
    async with doubles.Door(users=(user("put"),)) as door:
        line = await enter(door)
        for request in (
            "Q.PUT",
            "Q.TAKE WAIT FROM q",
            "S.PUT a b",
            "S.PUT a EVERY x q body",
            "Q.MOVE q",
            "Q.CONFIG",
        ):
            assert str(await line.call(*request.split())).startswith("BADARG"), request


async def test_lists_show_what_the_user_may_see() -> None:
    async with doubles.Door(users=(user("stats:mails.*", "lock:job*", "schedule:daily"),)) as door:

        async def names() -> list[str]:
            return ["_locks", "mails.a", "other"]

        async def topics() -> dict[str, list[str]]:
            return {"mails.all": ["mails.a", "other"], "rest": ["mails.a"]}

        async def topic(name: str, *, marks: bool) -> dict[str, Any]:
            return {"topic": name, "queues": ["mails.a", "other"]}

        async def locks(count: int, after: str) -> Any:
            held = [name for name in ("else", "job1", "job2", "other") if name > after]
            return [{"name": name} for name in held[:count]], held[count - 1] if held[
                count:
            ] else ""

        async def schedules() -> list[dict[str, Any]]:
            return [{"name": "daily"}, {"name": "weekly"}]

        door.queues.catalog.names, door.queues.topics.all = names, topics
        door.locks.page, door.schedules.list = locks, schedules
        line = await enter(door)
        assert await line.call("Q.LIST") == [b"mails.a"]
        assert await line.call("Q.LIST", "TOPICS") == [b"mails.all", [b"mails.a"]]
        assert (await line.call("Q.STATS"))[::2] == [b"mails.a"]
        door.queues.admin.stats = topic
        assert await line.call("Q.STATS", "mails.all") == [
            b"topic",
            b"mails.all",
            b"queues",
            [b"mails.a"],
        ]
        assert await line.call("L.LIST", "COUNT", "1") == [[[b"name", b"job1"]], b"job1"]
        both = [[b"name", b"job1"], [b"name", b"job2"]]
        assert await line.call("L.LIST") == [both, b""]
        assert await line.call("S.LIST") == [[b"name", b"daily"]]


async def test_without_rights_one_sees_the_nodes_state_alone() -> None:
    async with doubles.Door(users=(user(),)) as door:
        line = await enter(door)
        assert b"role" in await line.call("R.STATUS")
        assert b"tidewarden_version" in await line.call("INFO")
        assert await line.call("Q.LIST") == []
        assert str(await line.call("T.GET", "p/a")).startswith(
            "DENIED T.GET needs the right token:read"
        )
        assert str(await line.call("CLIENT", "LIST")).startswith("DENIED")
