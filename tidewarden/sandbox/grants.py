"""
Keeps the sandbox's grants: the current refresh token of each, and which tokens were used twice.

No network and no clock in here; times are handed in as unix milliseconds. A refresh token is its
grant's number and generation under a keyed hash, so that the books hold only the generation, and a
used token is known for what it is.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tidewarden.errors import ConfigError

CLIENT_ID = "sandbox"
# No secret: it is printed here. Its characters are those that HTTP Basic carries only form-encoded
# (RFC 6749, 2.3.1).
CLIENT_SECRET = "sandbox-s3cr%t+:/"
GRANTS_MAX = 10_000_000


@dataclass(slots=True)
class SandboxGrant:
    """
    Holds one account's consent.

    ``rotated_ms``: when its refresh token was last used; 0: never.
    """

    generation: int = 0
    rotated_ms: int = 0
    revoked: bool = False


@dataclass(frozen=True, slots=True)
class SandboxPair:
    """Holds the answer to a refresh; the access token lives until ``expires_at_ms``."""

    access_token: str
    refresh_token: str
    expires_at_ms: int


class SandboxGrants:
    """
    Keeps the grants of a folder.

    Every change is in the folder's file, with the system, before it is answered.

    Raises: ConfigError: the folder cannot be written, or another sandbox uses it.
    """

    def __init__(self, folder: Path, *, life_ms: int, grace_ms: int) -> None:
        self._life_ms = life_ms
        self._grace_ms = grace_ms
        self.grants: list[SandboxGrant] = []
        self.refreshes = 0
        self.reuses = 0
        self.graced = 0
        self.again: dict[tuple[int, int], int] = {}
        """
        How often a token was presented, by (grant, generation), for those presented more than once.
        """
        self._path = folder / "grants.log"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(folder / "lock")
            self._key = _key(folder / "key")
            self._replay()
            self._file = self._compacted()
        except OSError as error:
            raise ConfigError(
                [f"{folder}: cannot be used by the sandbox: {error.strerror or error}"]
            ) from error

    def close(self) -> None:
        """Close the file and let go of the folder."""
        self._file.close()
        self._lock.close()

    def mint(self, total: int) -> None:
        """
        Make the grants that are missing to ``total``.

        Account ``user-<number>`` has the grant of that number.
        """
        missing = min(total, GRANTS_MAX) - len(self.grants)
        if missing > 0:
            self.grants.extend(SandboxGrant() for _ in range(missing))
            self._write(f"n {len(self.grants)}")

    def current(self, number: int, life_ms: int, now_ms: int) -> SandboxPair:
        """
        Return the pair in force of a grant; its access token lives ``life_ms`` from ``now_ms``.
        """
        generation = self.grants[number].generation
        expires_at_ms = now_ms + life_ms
        return SandboxPair(
            access_token=self._seal("sandbox-access", number, generation, expires_at_ms),
            refresh_token=self._seal("sandbox-refresh", number, generation, 0),
            expires_at_ms=expires_at_ms,
        )

    def refresh(self, token: str, now_ms: int) -> SandboxPair | None:
        """
        Use up a refresh token and return the next pair.

        ``None``: it is unknown, revoked, or was used before.

        A used one revokes its grant, unless it is the latest used and its grace is not over: then
        the pair that followed it is given again.
        """
        known = self._open("sandbox-refresh", token)
        if known is None or known[0] >= len(self.grants):
            return None
        number, generation, _ = known
        grant = self.grants[number]
        if generation < grant.generation:
            return self._reused(number, generation, now_ms)
        if grant.revoked or generation > grant.generation:
            return None
        grant.generation += 1
        grant.rotated_ms = now_ms
        self.refreshes += 1
        self._write(f"r {number} {grant.generation} {now_ms}")
        return self.current(number, self._life_ms, now_ms)

    def whose(self, access_token: str, now_ms: int) -> int | None:
        """Return the number of the grant that a living access token belongs to."""
        known = self._open("sandbox-access", access_token)
        if (
            known is None
            or known[0] >= len(self.grants)
            or known[2] <= now_ms
            or self.grants[known[0]].revoked
        ):
            return None
        return known[0]

    def stats(self) -> dict[str, int]:
        """Return totals since the folder was made."""
        revoked = sum(grant.revoked for grant in self.grants)
        return {
            "grants": len(self.grants),
            "live_grants": len(self.grants) - revoked,
            "revoked_grants": revoked,
            "refreshes": self.refreshes,
            "reuse_attempts": self.reuses,
            "reuse_graced": self.graced,
        }

    def detail(self) -> dict[str, dict[str, object]]:
        """
        Return by account its generation, whether it is revoked, and which tokens were reused.

        A token counts as reused if it was presented more than once.
        """
        again: dict[int, dict[str, int]] = {}
        for (number, generation), times in self.again.items():
            again.setdefault(number, {})[str(generation)] = times
        return {
            account(number): {
                "generation": grant.generation,
                "revoked": grant.revoked,
                "presented_again": again.get(number, {}),
            }
            for number, grant in enumerate(self.grants)
        }

    def _reused(self, number: int, generation: int, now_ms: int) -> SandboxPair | None:
        grant = self.grants[number]
        self.reuses += 1
        self.again[number, generation] = self.again.get((number, generation), 1) + 1
        latest = generation == grant.generation - 1
        graced = latest and not grant.revoked and now_ms < grant.rotated_ms + self._grace_ms
        if graced:
            self.graced += 1
        else:
            grant.revoked = True
        self._write(f"{'g' if graced else 'x'} {number} {generation}")
        return self.current(number, self._life_ms, now_ms) if graced else None

    def _seal(self, kind: str, number: int, generation: int, expires_at_ms: int) -> str:
        text = f"{number}.{generation}.{expires_at_ms}"
        mac = hmac.digest(self._key, f"{kind}.{text}".encode(), hashlib.sha256)
        return f"{kind}.{text}.{base64.urlsafe_b64encode(mac[:18]).decode()}"

    def _open(self, kind: str, token: str) -> tuple[int, int, int] | None:
        parts = token.split(".")
        if (
            len(parts) != 5
            or parts[0] != kind
            or not all(part.isascii() and part.isdigit() for part in parts[1:4])
        ):
            return None
        if max(map(len, parts[1:4])) > 15:
            return None
        number, generation, expires_at_ms = (int(part) for part in parts[1:4])
        if not hmac.compare_digest(
            token.encode(), self._seal(kind, number, generation, expires_at_ms).encode()
        ):
            return None
        return number, generation, expires_at_ms

    def _write(self, line: str) -> None:
        # Unbuffered: with the kernel before the answer leaves. No fsync: only a power cut may take
        # it from a sandbox.
        self._file.write(line.encode() + b"\n")

    def _replay(self) -> None:
        """
        Read the file; a last line that a kill cut short was never answered for, and is left out.
        """
        if not self._path.exists():
            return
        for line in self._path.read_bytes().split(b"\n")[:-1]:
            kind, *numbers = line.decode().split()
            self._apply(kind, [int(number) for number in numbers])

    def _apply(self, kind: str, numbers: list[int]) -> None:
        if kind == "n":
            self.grants.extend(SandboxGrant() for _ in range(numbers[0] - len(self.grants)))
        elif kind == "t":
            self.refreshes, self.reuses, self.graced = numbers
        elif kind == "s":
            number, generation, rotated_ms, revoked = numbers
            self.grants[number] = SandboxGrant(generation, rotated_ms, bool(revoked))
        elif kind == "a":
            self.again[numbers[0], numbers[1]] = numbers[2]
        elif kind == "r":
            grant = self.grants[numbers[0]]
            grant.generation, grant.rotated_ms = numbers[1], numbers[2]
            self.refreshes += 1
        else:
            number, generation = numbers
            self.reuses += 1
            self.graced += kind == "g"
            self.again[number, generation] = self.again.get((number, generation), 1) + 1
            self.grants[number].revoked |= kind == "x"

    def _compacted(self) -> IO[bytes]:
        """Rewrite the file as one line per grant, put it in place, and return it, open for more."""
        new = self._path.with_suffix(".new")
        new.write_text("".join(line + "\n" for line in self._snapshot()), "utf-8")
        new.replace(self._path)
        return open(self._path, "ab", buffering=0)

    def _snapshot(self) -> Iterator[str]:
        yield f"n {len(self.grants)}"
        yield f"t {self.refreshes} {self.reuses} {self.graced}"
        for number, grant in enumerate(self.grants):
            if grant.generation or grant.revoked:
                yield f"s {number} {grant.generation} {grant.rotated_ms} {grant.revoked:d}"
        for (number, generation), times in self.again.items():
            yield f"a {number} {generation} {times}"


def account(number: int) -> str:
    """Return the name of a grant's account: ``user-000042``."""
    return f"user-{number:06d}"


def _lock(path: Path) -> IO[bytes]:
    file = open(path, "ab")  # noqa: SIM115  # held open for as long as the folder is ours
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise ConfigError(
            [f"{path.parent}: another sandbox uses this folder; stop it or give another one"]
        ) from error
    return file


def _key(path: Path) -> bytes:
    """Return the folder's signing key, made once."""
    if not path.exists():
        new = path.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_bytes(os.urandom(32))
        new.replace(path)
    return path.read_bytes()
