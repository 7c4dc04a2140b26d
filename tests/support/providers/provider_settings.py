"""A node's settings for an authorization server of a test, as text and as an object."""

from __future__ import annotations

import json
from typing import Any

from tidewarden.config.load import Provider, Secret


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


def provider_of(server: Any, name: str = "p", **settings: Any) -> Provider:
    """Return the same as the configuration has it."""
    known: dict[str, Any] = {
        "token_url": server.token_url,
        "client_id": server.client_id,
        "client_secret": Secret(server.client_secret),
        "timeout_s": 20.0,
    }
    return Provider(name=name, **(known | settings))
