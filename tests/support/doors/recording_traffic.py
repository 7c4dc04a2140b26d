"""Keeps what a door notes of each request that it has answered."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Noted:
    user: str | None
    verb: str
    name: bytes
    peer: str
    bytes_in: int
    bytes_out: int
    failed: str
    seconds: float


class RecordingTraffic:
    def __init__(self) -> None:
        self.notes: list[Noted] = []

    def note(
        self,
        user: str | None,
        verb: str,
        name: bytes,
        peer: str,
        bytes_in: int,
        bytes_out: int,
        failed: str,
        seconds: float,
    ) -> None:
        self.notes.append(Noted(user, verb, name, peer, bytes_in, bytes_out, failed, seconds))

    def told(self) -> list[tuple[str, bytes, str]]:
        return [(one.verb, one.name, one.failed) for one in self.notes]
