"""The command table: complete, and each verb reachable in either case."""

from __future__ import annotations

import re
from pathlib import Path

from tidewarden.server.verbs.table import COMMANDS

PROTOCOL = (Path(__file__).parents[4] / "docs" / "protocol.md").read_text("utf-8")
ROOMS_VERBS = set(re.findall(r"\b[PQLSTVR]\.[A-Z]+\b", PROTOCOL))
CONNECTIONS_VERBS = set(
    "SESSION TIME PING ECHO HELLO AUTH QUIT CLIENT INFO COMMAND SELECT RESET MULTI EXEC DISCARD".split()  # noqa: SIM905  # a list of verbs
)
SERVED = ROOMS_VERBS | CONNECTIONS_VERBS


def test_every_verb_of_the_protocol_is_there_and_no_other() -> None:
    assert {command.name for command in COMMANDS.values()} == SERVED
    assert len(SERVED) > 60


def test_each_is_found_in_either_case() -> None:
    for word, command in COMMANDS.items():
        assert COMMANDS[word.upper()] is COMMANDS[word.lower()] is command


def test_tokens_need_a_named_user_and_only_entering_needs_nothing() -> None:
    assert {name for name in SERVED if COMMANDS[name.encode()].level == "user"} == {
        n for n in SERVED if n[:2] in ("P.", "T.", "V.")
    } | {"R.AUDIT"}
    assert {name for name in SERVED if COMMANDS[name.encode()].level == "open"} == {
        "HELLO",
        "AUTH",
        "QUIT",
        "RESET",
    }


def test_each_is_described_in_the_protocol() -> None:
    assert {name for name in SERVED if not re.search(rf"\b{re.escape(name)}\b", PROTOCOL)} == set()
