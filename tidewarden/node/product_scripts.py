"""The scripts of every room of the product, as a node and its tools run them."""

from __future__ import annotations

from tidewarden.queue.shared_lua import SHARED
from tidewarden.store.scripts.loader import Scripts

PACKAGES = ("tidewarden.queue", "tidewarden.tokens", "tidewarden.scheduler")
PLAIN = ("tidewarden.cluster",)  # their scripts are of no shard


def product_scripts() -> Scripts:
    """Read every script of the product."""
    return Scripts(SHARED, PACKAGES, plain=PLAIN)
