"""``[webhooks.NAME]`` and ``[companions.NAME]`` of the configuration."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import re
from collections.abc import Iterable, Mapping

from .addresses import plain_fault, url_fault
from .provider_reading import NAME, NAME_ALLOWED
from .secret import Secret, secret_of_file
from .settings import Companion, Webhook
from .sources import Found, nearest, read

SECRET_KEYS = ("secret", "secret_file", "secret_env")
SECRET_PREFIX = "whsec_"
SECRET_BYTES = (24, 64)  # as Standard Webhooks recommends
SECRET_ALLOWED = f"{SECRET_PREFIX} and the base64 of {SECRET_BYTES[0]} to {SECRET_BYTES[1]} bytes"

EVENT_KINDS = (
    "account.connected",
    "account.dead",
    "account.stopped",
    "account.recovered",
    "account.failing",
    "account.consent_expiring",
    "provider.breaker_open",
    "provider.breaker_closed",
    "provider.quarantine_begun",
    "provider.quarantine_over",
    "provider.silent",
    "provider.answers",
    "store.elected",
    "store.added",
    "store.removed",
    "store.recovered",
    "store.confirmed",
)
PLACES = ("account", "provider", "name")
"""What a companion's payload may stand in for: see :class:`Companion`."""

Tables = Mapping[str, dict[str, Found]]


def _keys(cls: type) -> frozenset[str]:
    return frozenset(item.name for item in dataclasses.fields(cls) if item.metadata)


FAMILIES = {"webhooks": _keys(Webhook) | set(SECRET_KEYS), "companions": _keys(Companion)}


def read_webhooks(
    tables: Tables, environ: Mapping[str, str], problems: list[str]
) -> dict[str, Webhook]:
    """Read every ``[webhooks.NAME]``; what cannot be used becomes a problem."""
    found: dict[str, Webhook] = {}
    for section, name, table in _sections(tables, "webhooks", problems):
        hook = dataclasses.replace(read(Webhook, section, table, problems), name=name)
        if hook.url and url_fault(hook.url):
            allowed = "an address that begins http:// or https://, then a host"
            problems.append(
                f"{table['url'].origin}: {section}.url: found an address that is not shown;"
                f" allowed: {allowed}"
            )
        elif hook.url and (fault := plain_fault(hook.url, allowed=hook.plain_http)):
            problems.append(f"{table['url'].origin}: {section}.url: {fault}")
        if nowhere := no_kinds(hook.events):
            problems.append(
                f"{table['events'].origin}: {section}.events: found {nowhere[0]!r}, which no event"
                f" is; {nearest(nowhere[0], EVENT_KINDS)}"
            )
        written = [key for key in SECRET_KEYS if key in table]
        if len(written) == 1:
            hook = dataclasses.replace(
                hook, secrets=_secrets(section, written[0], table, environ, problems)
            )
        else:
            words = " and ".join(written) or "none of them"
            where = next((f"{one.origin}: " for one in table.values()), "")
            problems.append(
                f"{where}{section}: found {words}; allowed: exactly one of {', '.join(SECRET_KEYS)}"
            )
        found[name] = hook
    return found


def read_companions(tables: Tables, problems: list[str]) -> dict[str, Companion]:
    """Read every ``[companions.NAME]``; what cannot be used becomes a problem."""
    known = {
        section.removeprefix("providers.") for section in tables if section.startswith("providers.")
    }
    found: dict[str, Companion] = {}
    for section, name, table in _sections(tables, "companions", problems):
        companion = dataclasses.replace(read(Companion, section, table, problems), name=name)
        problems.extend(
            f"{table['providers'].origin}: {section}.providers: found {one!r}; "
            f"allowed: providers that are configured: {', '.join(sorted(known)) or 'none'}"
            for one in companion.providers
            if one not in known
        )
        for word in re.findall(r"\{(\w+)\}", companion.payload):
            if word not in PLACES:
                names = ", ".join(f"{{{one}}}" for one in PLACES)
                problems.append(
                    f"{table['payload'].origin}: {section}.payload: found {{{word}}}; allowed:"
                    f" {names}"
                )
        found[name] = companion
    return found


def _sections(
    tables: Tables, family: str, problems: list[str]
) -> list[tuple[str, str, dict[str, Found]]]:
    found = []
    for section, table in tables.items():
        kind, dot, name = section.partition(".")
        if kind == family and dot:
            if not re.fullmatch(NAME, name):
                problems.append(f"{section}: found the name {name!r}; allowed: {NAME_ALLOWED}")
            found.append((section, name, table))
    return found


def _secrets(
    section: str,
    key: str,
    table: Mapping[str, Found],
    environ: Mapping[str, str],
    problems: list[str],
) -> tuple[Secret, ...]:
    """Read the secrets that sign, wherever the file says they are. None is shown in a problem."""
    found = table[key]
    text = found.value if isinstance(found.value, str) else ""
    fault = f"found no secret; allowed: {SECRET_ALLOWED}"
    if key == "secret_env" and text not in environ:
        text, fault = (
            "",
            f"found {text!r}, which the environment does not have; allowed: a variable that is set",
        )
    elif key == "secret_env":
        text = environ[text]
    elif key == "secret_file":
        try:
            text = secret_of_file(text)
        except OSError:
            text, fault = (
                "",
                f"found {text!r}, which cannot be read; allowed: a file with the secret",
            )
    words = text.split()
    if words and all(_is_secret(word) for word in words):
        return tuple(Secret(word) for word in words)
    if words:
        fault = f"found a value that is not shown; allowed: {SECRET_ALLOWED}"
    problems.append(f"{found.origin}: {section}.{key}: {fault}")
    return ()


def _is_secret(word: str) -> bool:
    try:
        raw = base64.b64decode(word.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        return False
    return word.startswith(SECRET_PREFIX) and SECRET_BYTES[0] <= len(raw) <= SECRET_BYTES[1]


def means(patterns: Iterable[str], kind: str) -> bool:
    """
    Tell whether one of the patterns ``account.dead``, ``account.*`` … covers that kind of event.
    """
    return any(kind.startswith(one[:-1]) if one.endswith("*") else kind == one for one in patterns)


def no_kinds(patterns: Iterable[str]) -> list[str]:
    """List the patterns that cover no existing kind of event."""
    return [one for one in patterns if not any(means((one,), kind) for kind in EVENT_KINDS)]
