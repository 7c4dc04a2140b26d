"""The command table: complete, and each verb reachable in either case."""

from __future__ import annotations

import re
from pathlib import Path

from tidewarden.server.verbs.table import COMMANDS

SERVED_TEXT = """
    Q.PUT Q.TAKE Q.ACK Q.RELEASE Q.FAIL Q.TOUCH Q.BURY Q.KICK Q.UPDATE Q.DELETE Q.PEEK Q.PAUSE Q.RESUME Q.STATS Q.LIST Q.CONFIG
    Q.WAIT Q.PURGE Q.RELEASEALL Q.MOVE Q.CHECK Q.LINK Q.UNLINK
    T.PUT T.GET T.MGET T.LIST T.PEEK T.WHY T.PROVIDER T.ANSWERS T.REFRESH T.DELETE T.STATS T.EXPORT T.IMPORT V.STATUS V.ROTATE
    S.PUT S.LIST S.DELETE S.PAUSE S.RESUME R.STATUS R.TRANSFER R.JOIN R.LEAVE R.BACKUP
    L.ACQUIRE L.RENEW L.RELEASE L.PEEK L.LIST
    SESSION TIME PING ECHO HELLO AUTH QUIT CLIENT INFO COMMAND SELECT RESET MULTI EXEC DISCARD
"""
LATER_TEXT = """
    R.SWITCHOVER
"""
SERVED, LATER = SERVED_TEXT.split(), LATER_TEXT.split()


def test_every_verb_of_the_protocol_is_there_and_no_other() -> None:
    assert {command.name for command in COMMANDS.values()} == {*SERVED, *LATER}
    assert {command.name for command in COMMANDS.values() if command.group == "later"} == set(LATER)


def test_each_is_found_in_either_case() -> None:
    for word, command in COMMANDS.items():
        assert COMMANDS[word.upper()] is COMMANDS[word.lower()] is command


def test_tokens_need_a_named_user_and_only_entering_needs_nothing() -> None:
    assert {name for name in SERVED if COMMANDS[name.encode()].needs == "user"} == {
        n for n in SERVED if n[:2] in ("T.", "V.")
    }
    assert {name for name in SERVED if COMMANDS[name.encode()].needs == "nothing"} == {
        "HELLO",
        "AUTH",
        "QUIT",
        "RESET",
    }


def test_each_is_described_in_the_protocol() -> None:
    text = (Path(__file__).parents[4] / "docs" / "protocol.md").read_text("utf-8")
    assert {name for name in SERVED if not re.search(rf"\b{re.escape(name)}\b", text)} == set()
