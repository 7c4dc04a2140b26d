"""
What is sent to a RESP door to break it, and what may be answered: shared by the door in this
process and a real node's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hiredis
from hypothesis import strategies as st
from support.doors.doubles import framed

from tidewarden.errors import BY_CODE
from tidewarden.server.verbs.table import COMMANDS

# Those a healthy node may answer; NOPROTO and EXECABORT are Redis's own.
WORDS = BY_CODE.keys() - {"INTERNAL", "STOREDOWN", "CONFIG", "UNREACHABLE"} | {
    "NOPROTO",
    "EXECABORT",
}

# Requests that their verbs were made for. From these, all others are made by breaking some.
GOOD_TEXT = """
PING
PING hello
ECHO hello
HELLO
HELLO 2
HELLO 3 SETNAME x
HELLO 3 AUTH admin guess
AUTH admin guess
QUIT
RESET
SELECT 0
CLIENT SETNAME x
CLIENT GETNAME
CLIENT SETINFO LIB-NAME x
CLIENT ID
CLIENT INFO
CLIENT LIST
CLIENT NO-EVICT ON
CLIENT NO-TOUCH OFF
CLIENT REPLY ON
CLIENT REPLY SKIP
CLIENT REPLY OFF
INFO server
TIME
COMMAND
COMMAND COUNT
COMMAND DOCS PING
COMMAND INFO PING
MULTI
EXEC
DISCARD
SESSION
SESSION GRACE 20
SESSION 6f1c2f0e-6c0e-4b5a-9d2e-1d8b2d9b7b5a GRACE 20
Q.PUT q x
Q.PUT q x ID a IFEXISTS replace
Q.PUT q x ID b DELAY 5 WITHIN 50 PRIORITY 7 LEASE 10 ATTEMPTS 3 BACKOFF 2 TTL 60 WAIT 3
Q.PUT q x AT 1700000000000 DEADLINE 1700000000001
Q.PUT q x LANE l
Q.TAKE FROM q
Q.TAKE COUNT 3 WAIT 5 LEASE 20 FROM q r
Q.TAKE ID a FROM q
Q.ACK q a 5
Q.ACK q a 5 b 6
Q.ACK q a 5 RESULT x
Q.RELEASE q a 5 DELAY 5 REASON x
Q.FAIL q a 5 DELAY 5 REASON x
Q.TOUCH q a 5 LEASE 20
Q.BURY q a 5 REASON x
Q.KICK q COUNT 5 REASON x
Q.KICK q ALL AGE 0
Q.KICK q ALL REASONIS x
Q.KICK q ID a
Q.KICK q ID a PAYLOAD y BURIED 5
Q.UPDATE q a PAYLOAD y DELAY 5 WITHIN 9 PRIORITY 3
Q.UPDATE q a LEASE 5 AT 1700000000000 DEADLINE 1700000000000
Q.DELETE q a
Q.DELETE q a LEASE 5
Q.DELETE q a FORCE
Q.PEEK q a
Q.PEEK q a MAXSTALE 500
Q.PEEK q STATE ready COUNT 5
Q.PEEK q STATE leased
Q.PEEK q STATE buried MATCH *y* IN payload WHERE $.a["b"][0]=5
Q.PEEK q STATE ready MATCH a* IN id COUNT 5
Q.WAIT q a 5
Q.PAUSE q MS 5
Q.RESUME q
Q.STATS
Q.STATS q
Q.STATS q SHARDS MAXSTALE 500
Q.LIST
Q.LIST TOPICS
Q.LINK t q
Q.LINK t x EXPIRE 60000 CAPACITY 5
Q.UNLINK t q
Q.CONFIG q
Q.CONFIG q SET lease_ms 50 capacity 100
Q.CONFIG r SET order edf shards 3 dedup_ms 5
Q.PURGE q
Q.PURGE q STATE buried
Q.PURGE q STATE buried COUNT 5 REASON x AGE 0
Q.RELEASEALL q
Q.RELEASEALL q HOLDER n0.1
Q.HOLDERS q ID a
Q.HOLDERS q COUNT 5
Q.REASONS q MAXSTALE 5
Q.DROP x FORCE
Q.DROPTOPIC t
Q.MOVE q COUNT 5 TO r REASON x
Q.MOVE q ALL TO r AGE 0
Q.CHECK q
Q.CHECK * REPAIR
T.PUT p/a {"refresh_token":"x","expires_in":3600}
T.GET p/a MINTTL 5 WAIT 5 NEWER 1 MAXSTALE 500
T.LIST PROVIDER p STATE fresh COUNT 5 AFTER x
T.REFRESH p/a GENERATION 1
T.DELETE p/a
T.DEVICE p/a SCOPE s PARAMETERS {"x":"y"}
T.CONNECT p/a RETURN https://a.example/ SCOPE s PARAMETERS {"x":"y"}
T.STATS
T.PEEK p/a
T.ANSWERS p/a
T.WHY p/a
T.WHY p
T.PROVIDER RELEASE p
P.PUT p {"client_id":"c"}
P.GET p
P.LIST
P.DELETE p
T.EXPORT 00 00 1 COUNT 5
T.IMPORT 00 00 1 sealed
V.STATUS
V.ROTATE FORCE
T.MGET p/a p/b
S.PUT s CRON @daily TZ UTC CATCHUP none q x PRIORITY 5
S.PUT s EVERY 3600000 q x DELAY 5
S.PUT s AT 4000000000000 q x
S.LIST
S.DELETE s
S.PAUSE s
S.RESUME s
S.RUN s
S.RUN s ID r1
S.GET s COUNT 3
S.NEXT MS 3600000
L.ACQUIRE l 20 WAIT 3 KEY k
L.ACQUIRE l 20
L.RENEW l 5 20
L.RELEASE l 5
L.PEEK l
L.LIST COUNT 5
R.STATUS
R.TRANSFER n1
R.SWITCHOVER n1
R.RECOVER n1 ACCEPTLOSS
R.CONFIRM
R.DISCARDED
R.AUDIT
R.AUDIT AFTER 0-0.0-0 COUNT 5 USER ada
R.JOIN n1 h:7420
R.LEAVE n1
R.BACKUP
R.TRAFFIC BY queue TOP 5 SORT bytes OVER start NODE all
R.TAP USER u QUEUE q RATE 1/3 MS 5
R.CONSUMERS USER u QUEUE q NODE all COUNT 5
"""
GOOD: dict[str, list[list[bytes]]] = {}
for line in GOOD_TEXT.split("\n")[1:-1]:
    GOOD.setdefault(line.split()[0], []).append(line.encode().split())
for command in COMMANDS.values():  # those without a line above: as many words as they need
    GOOD.setdefault(command.name, [[command.name.encode(), *[b"1"] * (command.least - 1)]])
ALL = [request for examples in GOOD.values() for request in examples]
# Those that change what their connection answers to the next ones.
STATEFUL = {"QUIT", "RESET", "MULTI", "EXEC", "DISCARD", "CLIENT", "HELLO", "AUTH"}
PLAIN = [request for request in ALL if request[0].decode() not in STATEFUL]

ARGUMENT = st.one_of(
    st.sampled_from(sorted({word for request in ALL for word in request})),
    st.sampled_from(sorted(name for name in COMMANDS)),
    st.sampled_from(
        [b"", b"0", b"1", b"2", b"-1", b"+1", b"1.5", b"1e3", b"007", b"99", b"100", b"1000", b"1001", b"65536", b"3600001",
         b"4398046511103", b"4398046511104", b"9007199254740992", b"9" * 16, b"9" * 17, b"9" * 400, b"nan", b"inf", b"NaN",
         b"_tokens:p:c", b"_x", b"*", b"%s%n", b"{q}", b"a b", b"a\r\nb", b"\r\n+OK\r\n", b"\x00", b"\xff\xfe", b"\xc3\x28",
         "ü€😀".encode(), "\ud800".encode("utf-8", "surrogatepass"), b"x" * 201, b"x" * 5000, b"{}", b"[]", b"null", b"{",
         b"[" * 3000, b'{"a":' * 500, b"p/", b"/a", b"p/../a", b"0 0 30 2 *", b"* * * * *", b"Mars/Olympus"]
    ),
    st.integers(-(2**70), 2**70).map(lambda number: b"%d" % number),
    st.binary(max_size=30),
)  # fmt: skip


@st.composite
def broken(draw: Any, examples: list[list[bytes]]) -> list[bytes]:
    """
    A request of one of the verbs, with some of its arguments replaced, left out, doubled, moved, or
    more put in.
    """
    words = list(draw(st.sampled_from(examples)))
    for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2, 3]))):
        how = draw(
            st.sampled_from(
                ["replace", "replace", "replace", "drop", "add", "double", "swap", "case", "many"]
            )
        )
        at = draw(st.integers(1, max(1, len(words) - 1)))
        if how == "add" or at >= len(words):
            words.insert(at, draw(ARGUMENT))
        elif how == "replace":
            words[at] = draw(ARGUMENT)
        elif how == "drop":
            del words[at]
        elif how == "double":
            words.insert(at, words[at])
        elif how == "swap":
            words[at], words[-1] = words[-1], words[at]
        elif how == "case":
            words = [word.swapcase() for word in words]
        else:
            words += words[1:] * draw(st.sampled_from([1, 5, 60]))
    return words


PIECE = st.one_of(
    broken(ALL).map(framed),
    st.lists(ARGUMENT, min_size=1, max_size=5).map(framed),
    st.binary(max_size=40),
    st.sampled_from(
        [b"*", b"$", b"\r\n", b"\n", b"\r", b"*1\r\n", b"*3\r\n", b"$3\r\n", b"*0\r\n", b"*-1\r\n", b"$-1\r\n", b"%2\r\n", b"~1\r\n",
         b">1\r\n", b"_\r\n", b"#t\r\n", b",1\r\n", b"(1\r\n", b"=3\r\n", b"!3\r\n", b"*2147483647\r\n", b"*99999999999999999999\r\n",
         b"*2016\r\n", b"*1\r\n$2147483647\r\n", b"*1\r\n$1114112\r\n", b"*1\r\n$9999999999\r\n", b"*1\r\n" * 500, b"*2\r\n*2\r\n" * 200,
         b"PING\r\n", b"q.put q x\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"x" * 70_000, b"\x00"]
    ),
)  # fmt: skip


@st.composite
def stream(draw: Any) -> bytes:
    """Requests and rubbish one after the other, and then some of the bytes changed."""
    data = bytearray(b"".join(draw(st.lists(PIECE, min_size=1, max_size=8))))
    for _ in range(draw(st.sampled_from([0, 0, 1, 2, 5]))):
        at = draw(st.integers(0, len(data)))
        size = draw(st.integers(0, 12))
        how = draw(st.sampled_from(["flip", "cut", "insert", "double"]))
        if how == "flip" and at < len(data):
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif how == "cut":
            del data[at : at + size]
        elif how == "insert":
            data[at:at] = draw(st.binary(max_size=12))
        else:
            data[at:at] = data[at : at + size]
    return bytes(data)


def ending(marker: str, login: tuple[str, ...] = ()) -> bytes:
    """Requests after which a connection, whatever was done to it, answers the marker."""
    requests = [("AUTH", *login)] * bool(login) + [
        ("DISCARD",),
        ("CLIENT", "REPLY", "ON"),
        ("ECHO", marker),
    ]
    return b"".join(framed(request) for request in requests)


class Answers:
    """
    What a door sent, reply by reply. Raises AssertionError at the first that no door may send.
    """

    def __init__(self) -> None:
        self._reader = hiredis.Reader(notEnoughData=Ellipsis)
        self.replies: list[Any] = []

    def feed(self, data: bytes) -> list[Any]:
        """The replies that ``data`` completes."""
        self._reader.feed(data)
        found = []
        while (reply := self._reader.gets()) is not Ellipsis:
            for error in errors_in(reply):
                word = str(error).partition(" ")[0]
                assert word in WORDS, f"no door may answer {error!r}"
            found.append(reply)
        self.replies += found
        return found

    def over(self) -> None:
        """The door hung up: not in the middle of a reply."""
        self._reader.feed(b"+over\r\n")
        assert self._reader.gets() == b"over", "half a reply"


def errors_in(reply: Any) -> Iterator[Exception]:
    """Every error in a reply, however deep."""
    if isinstance(reply, Exception):
        yield reply
    elif isinstance(reply, list | tuple | set):
        for item in reply:
            yield from errors_in(item)
    elif isinstance(reply, dict):
        for item in reply.values():
            yield from errors_in(item)
