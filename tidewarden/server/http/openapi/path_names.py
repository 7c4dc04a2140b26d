"""Describes the parameters in braces in the paths of routes."""

from __future__ import annotations

from typing import Any

from tidewarden.config.load import NAME
from tidewarden.queue.task import ID_MAX, NAME_MAX, NAME_PATTERN
from tidewarden.scheduler.rows import NAME_MAX as SCHEDULE_NAME_MAX
from tidewarden.tokens.accounts.names import ACCOUNT_BYTES_MAX

SLASHED = "Its own `/` is sent as `%2F`."


def _name(description: str, example: str, most: int = NAME_MAX) -> dict[str, Any]:
    return {
        "description": description,
        "schema": {
            "type": "string",
            "minLength": 1,
            "maxLength": most,
            "pattern": f"^{NAME_PATTERN}$",
            "examples": [example],
        },
    }


def _text(description: str, example: str, most: int) -> dict[str, Any]:
    return {
        "description": description,
        "schema": {"type": "string", "minLength": 1, "maxLength": most, "examples": [example]},
    }


PATH_NAMES: dict[str, dict[str, Any]] = {
    "provider": {
        "description": "A provider of the configuration.",
        "schema": {"type": "string", "pattern": f"^{NAME}$", "examples": ["shop"]},
    },
    "account": _text(
        f"The account's name at its provider: letters, digits and signs. {SLASHED}",
        "ada@example.com",
        ACCOUNT_BYTES_MAX,
    ),
    "name": _name(f"The schedule's name. {SLASHED}", "nightly", SCHEDULE_NAME_MAX),
    "queue": _name(f"The queue's name. {SLASHED}", "mail"),
    "topic": _name(f"The topic's name. {SLASHED}", "orders"),
    "lock": _text(
        f"The lock's name: no white space, no control characters. {SLASHED}", "deploy", ID_MAX
    ),
    "id": _text(
        "The task's id: no white space, no control characters. Its own `/` is sent as `%2F`.",
        "order-42",
        ID_MAX,
    ),
    "session": {
        "description": "The session's uuid.",
        "schema": {
            "type": "string",
            "format": "uuid",
            "examples": ["6f1c2a0e-8a55-4c0b-9d5e-2b8a5f3e7c11"],
        },
    },
    "backup": {
        "description": "The backup's name, as it was answered when it was made.",
        "schema": {"type": "string", "pattern": "^[0-9a-zA-Z]+$", "examples": ["0123456789abcdef"]},
    },
}
"""A parameter's description and schema, by its name."""
