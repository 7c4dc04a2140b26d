"""Leads from this node to another node's store: plainly, or by TLS through the store's tunnel."""

from __future__ import annotations

from pathlib import Path

from tidewarden.config.addresses import parse_address
from tidewarden.config.settings import Node
from tidewarden.errors import StoreDown
from tidewarden.store.connect import BY
from tidewarden.store.embedded import tunnel


class StoreRoute:
    """Knows how this node and its store reach a store at ``host:port``."""

    def __init__(self, node: Node, folder: Path) -> None:
        """Lead to this node's own store, which lies in ``folder``."""
        self._node, self._folder = node, folder

    def place(self, address: str) -> tuple[str, int]:
        """
        Return the place by which this node's store follows the one at ``address``.

        Raises: StoreDown: it is no address, or this store's tunnel does not run.
        """
        if self._node.tls_cert:
            try:
                return "127.0.0.1", tunnel.outward_port(self._folder)
            except (OSError, ValueError):
                raise StoreDown(f"no tunnel runs for the store in {self._folder}") from None
        found = parse_address(address)
        if found is None:
            raise StoreDown(f"{address!r} is no address of a store")
        return found

    def lead(self, address: str) -> None:
        """
        Have the tunnel's place lead to ``address``. Raises: OSError: the folder cannot be written.
        """
        if self._node.tls_cert:
            tunnel.write_upstream(self._folder, address)

    def leads(self, place: tuple[str, int], address: str) -> bool:
        """Return whether a store that follows ``place`` follows the one at ``address``."""
        if not address:
            return False
        try:
            if place != self.place(address):
                return False
            named = (self._folder / tunnel.UPSTREAM).read_text("ascii")
        except StoreDown:
            return False
        except OSError:
            return not self._node.tls_cert
        return not self._node.tls_cert or named == address

    def url(self, address: str, user: str, password: str, by: int = 0) -> str:
        """
        Return the URL of the store at ``address``. A secret: keep it out of logs.

        ``by``: the port of loopback through which it is reached; 0: it is reached itself.
        """
        found = tunnel.store_url(self._node, address, user, password)
        return f"{found}{'&' if '?' in found else '?'}{BY}={by}" if by else found
