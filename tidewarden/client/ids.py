"""Makes the ids of tasks: each put carries one, so that repeating it puts one task."""

from __future__ import annotations

import os
import secrets

from tidewarden.clock import Clock

_ALPHABET = "0123456789abcdefghijklmnopqrstuv"  # base 32 in an order that sorts as the numbers do
_PER_MS = 2**20


def _base32(number: int, width: int) -> str:
    digits = []
    for _ in range(width):
        number, digit = divmod(number, 32)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))


_PAIRS = [_base32(number, 2) for number in range(1024)]


class Ids:
    """
    Makes ids of 21 characters: the time in ms, a sequence within it, 40 random bits of this maker.

    They sort by time, and those of one maker in the order in which they were made, also when the
    clock steps back.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pid = 0
        self._tag = ""
        self._last_ms = 0
        self._sequence = 0
        self._head = ""

    def make(self) -> str:
        """Return a new id."""
        if os.getpid() != self._pid:  # a fork would go on with the parent's tag
            self._pid, self._tag = os.getpid(), _base32(secrets.randbits(40), 8)
        now_ms = self._clock.unix_ms()
        self._sequence += 1
        if now_ms > self._last_ms or self._sequence >= _PER_MS:
            self._last_ms, self._sequence = max(now_ms, self._last_ms + 1), 0
            self._head = _base32(self._last_ms, 9)
        return self._head + _PAIRS[self._sequence >> 10] + _PAIRS[self._sequence & 1023] + self._tag
