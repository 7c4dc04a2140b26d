"""The section of a node's configuration for an authorization server of a test."""

from __future__ import annotations

import json
from typing import Any


def section(name: str, server: Any, token_url: str = "", **settings: Any) -> str:
    """
    Return ``[providers.NAME]`` for a server that says what its client is.

    Args: ``token_url``: where nodes reach it, if not at its own address. ``settings``: further
    ones, or others for the client.
    """
    known = {
        "token_url": token_url or server.token_url,
        "client_id": server.client_id,
        "client_secret": server.client_secret,
    }
    lines = (f"{key} = {json.dumps(value)}\n" for key, value in (known | settings).items())
    return f"[providers.{name}]\n{''.join(lines)}"
