"""
Finds the address by which others are told to reach this node.

It is the one that is set, else the address of this host on its way to the store.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from urllib.parse import urlsplit

from tidewarden.config.addresses import joined
from tidewarden.config.load import Config

log = logging.getLogger("tidewarden.store")

STORE_PORT = 6379


async def told_address(config: Config, at: str) -> str:
    """
    Return the ``host:base_port`` that other nodes are told.

    Empty: nothing says it, and that is logged. ``at``: as for :func:`own_host`.
    """
    if config.address:
        return config.address
    host = await own_host(at)
    if not host and config.store.url != "embedded":  # which no other node has
        log.warning(
            "node.host is every address of this host, and nothing says which of them others reach:"
            " set node.advertise"
        )
    return joined(host, config.node.base_port) if host else ""


async def own_host(at: str) -> str:
    """
    Return this host's address on the way to the store ``at``; empty: there is none.

    ``at`` is a URL without secrets, or several with blanks between. A Unix socket has no such
    address, nor has a store that no way leads to. Nothing is sent.
    """
    for url in at.split():
        try:
            parts = urlsplit(url if "://" in url else f"redis://{url}")
            if not parts.hostname or parts.scheme == "unix":
                continue
            # A datagram socket that is connected has its address from the routes alone.
            transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
                asyncio.DatagramProtocol, remote_addr=(parts.hostname, parts.port or STORE_PORT)
            )
        except (OSError, ValueError):
            continue
        try:
            host = str(transport.get_extra_info("sockname")[0])
        finally:
            transport.close()
        # which without its interface is none
        if not ipaddress.ip_address(host.partition("%")[0]).is_link_local:
            return host
    return ""
