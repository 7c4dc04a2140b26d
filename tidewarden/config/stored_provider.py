"""
Reads the settings of a provider that is put while nodes run, from JSON; shows them without secrets.

They are those of ``[providers.NAME]``, but for what lies on a node: files, and its environment.
"""

from __future__ import annotations

import dataclasses
import re
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tidewarden.errors import BadArg, TooBig

from .addresses import ADDRESS_CHARS_MAX, NOT_SHOWN
from .egress import ENVIRONMENT, Reach
from .load import PROVIDER_KEYS
from .placeholders import ADDRESSES
from .provider import Provider
from .provider_reading import NAME, NAME_ALLOWED, read_provider
from .sources import Found, nearest

DOCUMENT_BYTES_MAX = 16_384
"""Every node reads it in one turn of its loop, and all that were put when one of them changes."""
ENTRIES_MAX = 50
"""Of a setting that has several, likewise."""
PATTERNS_MAX = 5
"""To read one takes up to 2.6 ms."""
FAULTS_MAX = 10
"""That are told: to find the setting that was meant takes as long as all else."""
_OF_A_NODE = frozenset(
    item.name for item in dataclasses.fields(Provider) if item.metadata.get("path")
) | {key for key in PROVIDER_KEYS if key.endswith(("_file", "_env"))}
SETTINGS = tuple(sorted(PROVIDER_KEYS - _OF_A_NODE))
"""That may be put."""
SECRETS = frozenset(
    item.name for item in dataclasses.fields(Provider) if item.metadata.get("secret")
) | {"client_secret", "next_secret", "subject_token"}
"""Settings that are never shown."""
_VARIABLE = re.compile(r"\$\{?[A-Za-z_][A-Za-z0-9_]*\}?")
_ORIGIN = "put"
SET = "set"


def settings_of(document: bytes) -> dict[str, Any]:
    """
    Read the settings from JSON, without looking at them yet.

    Raises: BadArg, TooBig: it is no object, without quoting what may be a secret.
    """
    if len(document) > DOCUMENT_BYTES_MAX:
        raise TooBig(f"The settings of a provider may have {DOCUMENT_BYTES_MAX} bytes.")
    try:
        found = msgspec.json.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadArg(
            "The settings of a provider are a JSON object; what was sent cannot be read as JSON."
        ) from None
    if not isinstance(found, dict):
        raise BadArg(
            f"The settings of a provider are a JSON object; a JSON {type(found).__name__} was sent."
        )
    return found


def provider_from(name: str, settings: dict[str, Any], reach: Reach) -> Provider:
    """
    Make the provider of these settings. No file and no variable of this node is looked at.

    ``reach``: what it may reach here.

    Raises: BadArg: with the first problems: which setting, what was found, what is allowed.
    """
    section = f"providers.{name}"
    faults = (_fault(section, key, value) for key, value in settings.items())
    problems = list(islice(filter(None, faults), FAULTS_MAX))
    if not re.fullmatch(NAME, name):
        problems.insert(0, f"found the name {name[:80]!r}; allowed: {NAME_ALLOWED}")
    if not problems:
        table = {key: Found(value, _ORIGIN) for key, value in settings.items()}
        provider = read_provider(name, table, {}, problems)
        if not problems:
            problems = [f"{section}.{key}: {fault}" for key, fault in reach.faults(provider)]
        if not problems:
            return dataclasses.replace(
                provider, reach=reach, client_rate=_own_rate(provider), host_rate=0.0
            )
    told = [problem.removeprefix(f"{_ORIGIN}: ") for problem in problems[:FAULTS_MAX]]
    raise BadArg("; ".join(told))


def _own_rate(provider: Provider) -> float:
    """
    Return the requests a second that a provider is given for itself; 0: no such limit.

    A host's rate bounds everybody who sends there, for which the rights to one name are not enough.
    """
    return min((rate for rate in (provider.client_rate, provider.host_rate) if rate), default=0.0)


def shown(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with ``set`` in the place of each secret."""
    return {key: _hidden(value) if key in SECRETS else value for key, value in settings.items()}


def hosts_of(document: bytes) -> list[str]:
    """List where the settings that were put have requests sent: origins alone, without secrets."""
    try:
        settings = settings_of(document)
    except (BadArg, TooBig):
        return []
    found = []
    for key in (*ADDRESSES, "proxy"):
        url = settings.get(key)
        if isinstance(url, str) and url:
            found.append(f"{key} {_origin_of(url)}")
    if isinstance(preset := settings.get("preset"), str) and preset:
        found.append(f"preset {preset[:80]}")
    return found


def _origin_of(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return NOT_SHOWN
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host[:ADDRESS_CHARS_MAX]}"


def _fault(section: str, key: str, value: Any) -> str:
    """Say why a setting cannot be put, whatever its value; empty: it can."""
    where = f"{section}.{key[:80]}"
    if key in _OF_A_NODE:
        instead = re.sub(r"_(file|env)$", "", key)
        what = (
            f"{instead} itself" if instead in SETTINGS else "the configuration files of the nodes"
        )
        return (
            f"{where}: names what lies on a node, which a provider that is put cannot have;"
            f" allowed: {what}"
        )
    if key not in PROVIDER_KEYS:
        return f"{where}: unknown setting; {nearest(key[:80], SETTINGS)}"
    most = PATTERNS_MAX if key == "account_parameters" else ENTRIES_MAX
    if isinstance(value, dict | list) and len(value) > most:
        return f"{where}: found {len(value)} entries; allowed: at most {most}"
    if key == "proxy" and value == ENVIRONMENT:
        return f"{where}: found {value!r}, a node's own; allowed: the proxy's address"
    texts = value.values() if isinstance(value, dict) else (value,)
    if any(isinstance(text, str) and _VARIABLE.fullmatch(text) for text in texts):
        return f"{where}: found a variable, which nothing fills in here; allowed: the value itself"
    return ""


def _hidden(value: Any) -> Any:
    return dict.fromkeys(value, SET) if isinstance(value, dict) else SET
