"""T.*: what reaches the tokens, what the caller reads, and that no secret is echoed."""

from __future__ import annotations

import pytest
from support.doors import doubles

Door = doubles.Door


@pytest.mark.parametrize(
    ("request_", "call", "reply"),
    [
        (
            ("T.PUT", "p/a@b:c/d", '{"refresh_token": "r"}'),
            ("put", "p/a@b:c/d", {"refresh_token": "r"}),
            b":5",
        ),
        (("T.PUT", "p/a", "{}", "verbose", "keep"), ("put", "p/a", {}, "keep"), b"*3"),
        (("T.CONNECT", "p/a"), ("connect", "p/a", "", "", None, "admin"), b"$46"),
        (
            (
                "T.CONNECT",
                "p/a",
                "scope",
                "s t",
                "RETURN",
                "https://a/",
                "PARAMETERS",
                '{"x": "y"}',
            ),
            ("connect", "p/a", "https://a/", "s t", {"x": "y"}, "admin"),
            b"$46",
        ),
        (("T.DEVICE", "p/a", "SCOPE", "s"), ("device", "p/a", "s", None, "admin"), b"*8"),
        (("T.GET", "p/a"), ("get", "p/a", 0, 0), b"*5"),
        (("T.GET", "p/a", "wait", "9", "MINTTL", "8"), ("get", "p/a", 8, 9), b"*5"),
        (("T.GET", "p/a", "MAXSTALE", "300"), ("get", "p/a", 0, 0, 0, 300), b"*5"),
        (("T.GET", "p/nobody"), ("get", "p/nobody", 0, 0), b"-NOTFOUND there is no such account"),
        (("T.MGET", "p/a", "p/nobody"), ("get_many", ["p/a", "p/nobody"], 0, 0), b"*2"),
        (("T.MGET", "WAIT", "5", "p/a"), ("get_many", ["p/a"], 0, 5), b"*1"),
        (("T.PEEK", "p/a"), ("peek", "p/a"), b"*4"),
        (("T.ANSWERS", "p/a"), ("answers", "p/a"), b"*4"),
        (("T.WHY", "p/a"), ("why", "p/a"), b"*6"),
        (("T.WHY", "p"), ("why", "p"), b"*6"),
        (("T.WHY", "p/nobody"), ("why", "p/nobody"), b"-NOTFOUND there is no such account"),
        (("T.REFRESH", "p/a"), ("refresh", "p/a"), b"+OK"),
        (("T.REFRESH", "p/a", "generation", "7"), ("refresh", "p/a", 7), b"+OK"),
        (("T.GET", "p/a", "NEWER", "7", "WAIT", "9"), ("get", "p/a", 0, 9, 7), b"*5"),
        (("T.DELETE", "p/a"), ("delete", "p/a"), b":1"),
        (("T.DELETE", "p/nobody"), ("delete", "p/nobody"), b":0"),
        (
            ("T.EXPORT", "00", "0aff", "7", "COUNT", "5"),
            ("export", (b"\0", b"\n\xff", 7), "", 5, ""),
            b"*3",
        ),
        (
            ("T.IMPORT", "00", "0aff", "7", "a", "b"),
            ("import", (b"\0", b"\n\xff", 7), [b"a", b"b"]),
            b"*1",
        ),
        (("V.STATUS",), ("status",), b"*2"),
        (("V.ROTATE",), ("rotate", False), b"*2"),
        (("V.ROTATE", "force"), ("rotate", True), b"*2"),
        (("T.LIST",), ("list", "", "", 100, ""), b"*2"),
        (
            ("T.LIST", "PROVIDER", "p", "STATE", "DEAD", "COUNT", "5", "AFTER", "c"),
            ("list", "p", "dead", 5, "c"),
            b"*2",
        ),
    ],
)
async def test_what_reaches_the_tokens(
    request_: tuple[str, ...], call: tuple[object, ...], reply: bytes
) -> None:
    async with Door(users=(doubles.ADMIN,)) as door:
        line = await door.dial()
        assert await line.ask("AUTH", "admin", doubles.SECRET) == b"+OK"
        line.send(request_)
        assert await line.line() == reply
        assert door.tokens.calls == [call]


@pytest.mark.parametrize(
    "request_",
    [
        ("T.PUT", "p/a", '{"refresh_token": "s3cret'),
        ("T.PUT", "p/a", '["s3cret"]'),
        ("T.PUT", "p/a", b'{"refresh_token": "s3cret\xff"}'),
        ("T.PUT", "noslash", '{"refresh_token": "s3cret"}'),
        ("T.PUT", "/a", '{"refresh_token": "s3cret"}'),
        ("T.GET", "p/"),
        ("T.CONNECT", "p/a", "PARAMETERS", '["s3cret"]'),
        ("T.CONNECT", "p/a", "PARAMETERS", '{"s3cret'),
        ("T.GET", "p/a", "MINTTL"),
        ("T.MGET", "p/a", "s3cret"),
        ("T.MGET", "WAIT", "1"),
        ("T.EXPORT", "s3cret", "00", "1"),
        ("T.IMPORT", b"s3cret\xff", "00", "1", "a"),
    ],
)
async def test_a_badarg_quotes_no_secret(request_: tuple[str | bytes, ...]) -> None:
    async with Door(users=(doubles.ADMIN,)) as door:
        line = await door.dial()
        assert await line.ask("AUTH", "admin", doubles.SECRET) == b"+OK"
        line.send(request_)
        answer = await line.line()
        assert answer.startswith(b"-BADARG ")
        assert b"s3cret" not in answer
        assert not door.tokens.calls


@pytest.mark.parametrize("resp", ["2", "3"])
async def test_a_token_brings_what_else_its_provider_said_as_a_sixth_item(resp: str) -> None:
    async with Door(users=(doubles.ADMIN,)) as door:
        door.tokens.extras = {"instance_url": "https://x", "ok": True}
        line = await door.dial()
        line.send(
            ("HELLO", resp, "AUTH", "admin", doubles.SECRET), "T.GET p/a", "T.MGET p/a", "QUIT"
        )
        text = b'{"instance_url":"https://x","ok":true}'
        one = b"*6\r\n$4\r\nat-1\r\n$6\r\nBearer\r\n:%d\r\n:4\r\n$5\r\nfresh\r\n$%d\r\n%s\r\n" % (
            2**41,
            len(text),
            text,
        )
        assert (await line.rest()).endswith(one + b"*1\r\n" + one + b"+OK\r\n")


async def test_get_replies_with_five_items() -> None:
    async with Door(users=(doubles.ADMIN,)) as door:
        line = await door.dial()
        line.send(("AUTH", doubles.SECRET), "T.GET p/a", "QUIT")
        expected = (
            b"+OK\r\n*5\r\n$4\r\nat-1\r\n$6\r\nBearer\r\n:%d\r\n:4\r\n$5\r\nfresh\r\n+OK\r\n"
            % 2**41
        )
        assert await line.rest() == expected


@pytest.mark.parametrize("action", ["RELEASE", "probe", "Quarantine"])
async def test_a_provider_is_steered_and_its_story_answered(action: str) -> None:
    async with Door(users=(doubles.ADMIN,)) as door:
        line = await door.dial()
        assert await line.ask("AUTH", "admin", doubles.SECRET) == b"+OK"
        line.send(("T.PROVIDER", action, "p"))
        assert await line.line() == b"*6"
        assert door.tokens.calls == [(action.lower(), "p"), ("why", "p")]


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (
            ("T.PROVIDER", "mend", "p"),
            b"T.PROVIDER has no action 'mend'; there are RELEASE, PROBE, QUARANTINE.",
        ),
        (
            ("T.PROVIDER", "RELEASE", "p/a"),
            b"A provider is named alone, without an account: found 'p/a'.",
        ),
        (
            ("T.PROVIDER", "RELEASE", ""),
            b"A provider is named alone, without an account: found ''.",
        ),
        (("T.WHY", ""), b"A provider is named alone, without an account: found ''."),
        (("T.WHY", "/a"), b"An account is named provider/account."),
        (("T.WHY", "p/"), b"An account is named provider/account."),
    ],
)
async def test_a_wrong_name_or_action_is_told(request_: tuple[str, ...], says: bytes) -> None:
    async with Door(users=(doubles.ADMIN,)) as door:
        line = await door.dial()
        assert await line.ask("AUTH", "admin", doubles.SECRET) == b"+OK"
        line.send(request_)
        assert await line.line() == b"-BADARG " + says
        assert not door.tokens.calls
