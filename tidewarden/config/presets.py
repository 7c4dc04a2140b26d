"""
Known authorization servers: ``presets.toml``, read once.

Settings for ``[providers.NAME]``, with their sources.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True)
class Preset:
    """Holds one provider's preset."""

    name: str
    source: str
    """Where it is said."""
    checked: str
    """On which day it was looked up, as 2026-11-21."""
    settings: Mapping[str, Any]
    unconfirmed: tuple[str, ...]
    """Settings that were not found in the provider's own words."""
    note: str


def _load() -> Mapping[str, Preset]:
    document = tomllib.loads(
        resources.files(__package__).joinpath("presets.toml").read_text("utf-8")
    )
    return MappingProxyType(
        {
            name: Preset(
                name,
                table["source"],
                table["checked"],
                table["settings"],
                tuple(table.get("unconfirmed", ())),
                table.get("note", ""),
            )
            for name, table in document.items()
        }
    )


PRESETS: Mapping[str, Preset] = _load()
"""By name."""
