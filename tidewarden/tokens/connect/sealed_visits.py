"""
Seals links to a consent, and what a browser keeps of one while it is at the provider.

Both are sealed by the vault, whose keys every node has, so that no node keeps any of it. A link is
bound to its account: under another one's path it does not open. A visit is bound to its state, and
the browser has it in a cookie: a state that comes from elsewhere finds none.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import TypeVar

import msgspec

from tidewarden.clock import Clock
from tidewarden.tokens.vault.vault import (
    FINGERPRINT_KEY_ID,
    NONCE_BYTES,
    TAG_BYTES,
    Place,
    Unsealable,
    Vault,
    key_id_of,
)

from .outcomes import ConsentFailed

LINK_CHARS_MAX = 2_400
VISIT_CHARS_MAX = 3_600
"""Of a cookie with its name browsers keep 4,096 bytes."""
SEALED_BYTES_MIN = 5 + NONCE_BYTES + TAG_BYTES
LOOK_S = 5.0
"""So often at most the store is asked for a key that nobody here knows: a stranger may name one."""
STATE = re.compile(r"[A-Za-z0-9_-]{32}")

Kind = TypeVar("Kind")


class Link(msgspec.Struct, frozen=True, array_like=True):
    """Holds what a link allows; its account stands in its path. Fields are added at the end."""

    id: str
    until_ms: int
    """Unix milliseconds of the node that made it."""
    return_to: str
    """Where the browser is sent in the end; empty: it is shown a page."""
    scope: str
    parameters: dict[str, str]
    """Of the account, for its provider's placeholders."""
    user: str
    """Who made the link."""
    settings: str = ""
    """A digest of who its provider is: another one of that name is sent nobody, and no code."""


class Visit(msgspec.Struct, frozen=True, array_like=True):
    """Holds one way of a browser to a provider. Fields are added at the end."""

    provider: str
    account: str
    """Its name within the provider."""
    link: Link
    until_ms: int
    redirect_uri: str
    """Where the provider sends the browser back to."""
    verifier: str
    """Proves that the code was asked for here (RFC 7636); empty: the provider wants none."""
    nonce: str
    """Has to stand in the ID token; empty: none was asked for."""
    issuer: str
    """Whom the answer has to name (RFC 9207); empty: nobody knows."""
    says_issuer: bool
    """Whether the answer has to name anybody."""

    def __repr__(self) -> str:
        return f"Visit({self.provider}/{self.account})"


class SealedVisits:
    """Seals and opens links and visits."""

    def __init__(self, vault: Vault, clock: Clock) -> None:
        self._vault = vault
        self._clock = clock
        self._looked_at = float("-inf")

    async def seal_link(self, provider: str, account: str, link: Link) -> str:
        """Return a link as text for an address. Raises what the store raises."""
        return await self._seal(link, Place(provider, account, "link", 0, 0))

    async def open_link(self, provider: str, account: str, text: str) -> Link:
        """
        Open the link to an account's consent.

        Raises: ConsentFailed: it is none, is another account's, or has expired.
        """
        place = Place(provider, account, "link", 0, 0)
        link = await self._open(text, LINK_CHARS_MAX, place, Link)
        if link is None:
            raise ConsentFailed("link_invalid")
        if link.until_ms <= self._clock.unix_ms():
            raise ConsentFailed("link_expired")
        return link

    async def seal_visit(self, state: str, visit: Visit) -> str:
        """Return what a browser keeps of its visit under ``state``."""
        return await self._seal(visit, _of_state(state))

    async def open_visit(self, state: str, text: str) -> Visit:
        """
        Open what a browser kept under ``state``. It may have expired.

        Raises: ConsentFailed: it is not of this state, or not ours.
        """
        visit = await self._open(text, VISIT_CHARS_MAX, _of_state(state), Visit)
        if visit is None:
            raise ConsentFailed("unknown_browser")
        return visit

    async def _seal(self, what: msgspec.Struct, place: Place) -> str:
        await self._vault.ready()
        sealed = self._vault.seal(msgspec.msgpack.encode(what), place)
        return base64.urlsafe_b64encode(sealed).decode().rstrip("=")

    async def _open(self, text: str, chars_max: int, place: Place, kind: type[Kind]) -> Kind | None:
        """Open a sealed text; None: it is none of ours, was changed, or was made elsewhere."""
        raw = _bytes(text) if len(text) <= chars_max else b""
        if len(raw) < SEALED_BYTES_MIN or key_id_of(raw) == FINGERPRINT_KEY_ID:
            return None
        if not self._vault.holds(raw):  # its key may be new: another node has made it
            if self._clock.monotonic() - self._looked_at < LOOK_S:
                return None
            self._looked_at = self._clock.monotonic()
        try:
            return msgspec.msgpack.decode(await self._vault.unseal(raw, place), type=kind)
        except (Unsealable, msgspec.DecodeError):
            return None


def _of_state(state: str) -> Place:
    return Place("", state, "visit", 0, 0)


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):  # ValueError: it is no ASCII
        return b""
