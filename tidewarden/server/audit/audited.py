"""Chooses the words of a request that the audit log shows, and notes verbs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tidewarden.errors import BadArg, Error
from tidewarden.server.verbs.json_values import has_many_values

from .audit_log import AuditLog

Arguments = Sequence[bytes]
HIDDEN = "…".encode()
UNKNOWN = "UNKNOWN"
"""The outcome of a request that was called off: it may have happened."""


@dataclass(frozen=True, slots=True)
class Audited:
    """
    Says what the audit log shows of a verb's requests.

    Args:
        shown: the words of a request that hold no secret and no payload; None: it changes nothing.
        account: whether the first of them is an account, which is noted together with others.
        every_word: whether nothing that is sent is a secret, so that over HTTP the body is shown.
        reads: whether it is noted though it changes nothing, so over HTTP also of a GET.
        of_body: what of the payload is shown as well, where that is the body of a request by HTTP.
        word: the subcommand whose requests alone are noted; empty: those of all are.
    """

    shown: Callable[[Arguments], Arguments | None]
    account: bool = False
    every_word: bool = False
    reads: bool = False
    of_body: Callable[[bytes], Sequence[str]] | None = None
    word: bytes = b""

    def note(
        self, audit: AuditLog, user: str, peer: str, action: str, words: Arguments, outcome: str
    ) -> None:
        """Note a request, by the words that it shows."""
        texts = [word.decode("utf-8", "backslashreplace") for word in words]
        if self.account:
            audit.account(user, peer, action, texts[0], outcome)
        else:
            audit.change(user, peer, action, texts, outcome)


def first(count: int) -> Audited:
    """Show the first arguments of the verb; a payload follows, or words of no interest."""
    return Audited(lambda request: request[1 : 1 + count])


def first_and(of_body: Callable[[bytes], Sequence[str]]) -> Audited:
    """
    Show the first argument of the verb, and what ``of_body`` shows of the second, its payload.
    """

    def shown(request: Arguments) -> Arguments:
        return [request[1], *(text.encode() for text in of_body(bytes(request[2])))]

    return Audited(shown, of_body=of_body)


def whole() -> Audited:
    """Show all arguments of the verb."""
    return Audited(lambda request: request[1:], every_word=True)


def but_payloads() -> Audited:
    """Show all arguments of the verb, and what a body asks for; of a payload that there is one."""

    def shown(request: Arguments) -> Arguments:
        words = list(request[1:])
        for at, word in enumerate(request[1:-1]):
            if word.upper() == b"PAYLOAD":
                words[at + 1] = HIDDEN
        return words

    def of_body(body: bytes) -> Sequence[str]:
        if has_many_values(body):
            return ()
        try:
            sent = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, ValueError, RecursionError):
            return ()
        hidden = msgspec.Raw(msgspec.json.encode(HIDDEN.decode()))
        told = {
            name: hidden if name.startswith("payload") else value for name, value in sent.items()
        }
        return (msgspec.json.encode(told).decode(),)

    return Audited(shown, of_body=of_body)


def of_account(*, reads: bool = False) -> Audited:
    """Show the account, which is the first argument."""
    return Audited(lambda request: request[1:2], account=True, reads=reads)


def when(word: bytes) -> Audited:
    """Show all arguments of requests with this word among them: others change nothing."""
    return Audited(
        lambda request: request[1:] if word in [one.upper() for one in request[1:]] else None,
        every_word=True,
    )


def subcommand(word: bytes) -> Audited:
    """Show all arguments of requests that begin with this word: others change nothing."""
    return Audited(
        lambda request: request[1:] if request[1:2] and request[1].upper() == word else None,
        every_word=True,
        word=word,
    )


def unless(word: bytes) -> Audited:
    """Show all arguments of requests without this word among them: those with it change nothing."""
    return Audited(
        lambda request: None if word in [one.upper() for one in request[1:]] else request[1:],
        every_word=True,
    )


async def noted(work: Awaitable[Any], note: Callable[[str], None]) -> Any:
    """Return the result of ``work``, and note how it ended, unless the request made no sense."""
    outcome = UNKNOWN
    try:
        found = await work
        outcome = "ok"
    except Error as error:
        outcome = error.code
        raise
    finally:
        if outcome != BadArg.code:
            note(outcome)
    return found
