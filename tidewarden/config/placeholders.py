"""
Fills placeholders in a provider's settings, for what differs from account to account.

``https://{shop}.example.com/token`` has one.

What may stand for one is said by its pattern in ``account_parameters``. No value, whichever user
gives it, leads secrets to a host that the patterns do not mean: in an address a value is of
letters, digits and ``. _ ~ -`` alone whatever its pattern allows, and the patterns of an address
are of a small language in which nothing else can be said (:func:`pattern_fault`).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tidewarden import foreign_pattern
from tidewarden.errors import BadArg

from .provider import Provider

PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]{0,31})\}")
NAME_ALLOWED = "1 to 32 of a-z 0-9 _, the first a letter"
VALUE_CHARS_MAX = 200
VALUES_MAX = 200
"""Hosts that listed values may make together."""
HOST_CHARS_MAX = 253

ADDRESSES = (
    "token_url",
    "issuer",
    "revocation_url",
    "authorization_url",
    "par_url",
    "device_url",
)
TEXTS = ("client_id", "jwt_issuer", "jwt_subject", "jwt_audience")
MAPS = ("parameters", "headers", "jwt_claims", "authorization_parameters")
NAMED = "account"
"""In what an assertion says of an account, ``{account}`` is its name, which nobody has to give."""
NAMED_IN = ("jwt_subject", "jwt_claims")
_ADDRESS = re.compile(
    r"(?P<scheme>https?)://(?P<host>[^/?#:@]+)(?P<port>:[0-9]{1,5})?(?P<rest>[/?][^#]*)?"
)
_BRACE = re.compile(r"[{}]")
_IN_ADDRESS = re.compile(r"[A-Za-z0-9._~-]+")
_IN_HOST = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
# In a set a hyphen stands first or last: elsewhere it would make a range, and [.-9] holds the
# slash.
_SET = r"\[-?(?:[a-z]-[a-z]|[A-Z]-[A-Z]|[0-9]-[0-9]|[A-Za-z0-9_.~]|\\[.d])+-?\]"
_CHAR = r"(?:[A-Za-z0-9_~-]|\\[.-])"
_PATTERN = re.compile(
    rf"(?:{_CHAR}|{_SET}|\\d|\(\?:|\((?!\?)|\)|\||[?*+]|\{{[0-9]{{1,3}}(?:,[0-9]{{0,3}})?\}})+"
)
_LISTED = re.compile(rf"{_CHAR}+(?:\|{_CHAR}+)*")
PATTERN_ALLOWED = r"letters, digits, - _ ~ \. \d, sets of those without ^, ( | ) and repetitions"


def faults(provider: Provider) -> Iterator[tuple[str, str]]:
    """List the faults of a provider's placeholders and their patterns, as (setting, fault)."""
    patterns = provider.account_parameters
    wrong = set()
    for name, pattern in patterns.items():
        if not PLACEHOLDER.fullmatch(f"{{{name}}}"):
            yield (
                f"account_parameters {name}",
                f"found the name {name[:60]!r}; allowed: {NAME_ALLOWED}",
            )
        if name == NAMED:
            yield (
                f"account_parameters {name}",
                "stands for the account's own name; allowed: any other name",
            )
        if fault := foreign_pattern.fault_of(pattern):
            wrong.add(name)
            yield f"account_parameters {name}", f"found {pattern[:80]!r}, {fault}"
    used = set()
    for key, text in _texts(provider):
        names = PLACEHOLDER.findall(text)
        if key.partition(" ")[0] in NAMED_IN:
            names = [name for name in names if name != NAMED]
        used.update(names)
        for name in dict.fromkeys(names):
            if name not in patterns:
                yield (
                    key,
                    (
                        f"found {{{name}}}; allowed: a placeholder with a pattern in"
                        " account_parameters"
                    ),
                )
                wrong.add(name)
    in_addresses = {
        name for key in ADDRESSES for name in PLACEHOLDER.findall(getattr(provider, key))
    }
    for name in sorted(in_addresses - wrong):
        if fault := pattern_fault(patterns[name]):
            wrong.add(name)
            yield f"account_parameters {name}", fault
    for name in patterns:
        if name not in used:
            yield (
                f"account_parameters {name}",
                (
                    f"found {name!r}, which no address, client_id, parameter, header or assertion"
                    " holds"
                ),
            )
    for key in ADDRESSES:
        url = getattr(provider, key)
        if not wrong.intersection(PLACEHOLDER.findall(url)) and (
            fault := _address_fault(url, patterns)
        ):
            yield key, fault


def pattern_fault(pattern: str) -> str:
    """
    Say what is wrong with the pattern of a placeholder in an address.

    Empty: nothing that it matches can end or begin a part of an address.
    """
    if _PATTERN.fullmatch(pattern):
        return ""
    return (
        f"found {pattern[:80]!r}, which may let through / @ : or the like; allowed in an address:"
        f" {PATTERN_ALLOWED}"
    )


def check(provider: Provider, given: Any) -> dict[str, str]:
    """
    Return the parameters of an account, checked by its provider's patterns.

    Raises: BadArg: which one, what is wrong with it, what is allowed.
    """
    patterns = provider.account_parameters
    if not isinstance(given, Mapping):
        raise BadArg('parameters is no JSON object; allowed is {"NAME": "value"}')
    for name in given:
        if name not in patterns:
            known = ", ".join(sorted(patterns)) or "none"
            raise BadArg(
                f"parameters has {str(name)[:60]!r}; {provider.name} knows {known}"
                " (account_parameters)"
            )
    for name, pattern in patterns.items():
        if name not in given:
            raise BadArg(f"parameters.{name} is missing; {provider.name} allows {pattern}")
        if fault := _value_fault(given[name], pattern):
            raise BadArg(f"parameters.{name} {fault}; {provider.name} allows {pattern}")
    return {name: given[name] for name in patterns}


def filled(provider: Provider, parameters: Mapping[str, str]) -> Provider:
    """
    Return the provider with an account's parameters; itself where it has no placeholders.

    The values are looked at again: they were stored when other patterns may have held. Raises:
    BadArg.
    """
    if not provider.account_parameters:
        return provider
    values = check(
        provider,
        {name: text for name, text in parameters.items() if name in provider.account_parameters},
    )
    changes: dict[str, Any] = {
        key: _filled_address(key, getattr(provider, key), values) for key in ADDRESSES
    }
    changes |= {key: _filled(getattr(provider, key), values) for key in TEXTS}
    changes["own_hosts"] = _varies(provider)
    changes["own_issuer"] = bool(PLACEHOLDER.search(provider.issuer))
    for key in MAPS:
        texts: dict[str, str] = getattr(provider, key)
        changes[key] = {name: _filled(text, values) for name, text in texts.items()}
    return dataclasses.replace(provider, **changes)


def _varies(provider: Provider) -> bool:
    found = _ADDRESS.fullmatch(provider.token_url or provider.issuer)
    return bool(found and PLACEHOLDER.search(found["host"]))


def plainly(url: str) -> str:
    """Return an address with a word in each placeholder's place, to check its form."""
    return PLACEHOLDER.sub("x", url)


def _texts(provider: Provider) -> Iterator[tuple[str, str]]:
    for key in (*ADDRESSES, *TEXTS):
        yield key, getattr(provider, key)
    for key in MAPS:
        for name, text in getattr(provider, key).items():
            yield f"{key} {name}", text


def _value_fault(value: Any, pattern: str) -> str:
    if not isinstance(value, str):
        return f"is not a text but {type(value).__name__}"
    shown = repr(value if len(value) <= 60 else value[:57] + "...")
    if not value or len(value) > VALUE_CHARS_MAX:
        return f"has {len(value)} characters, not 1 to {VALUE_CHARS_MAX}"
    if not value.isascii() or not value.isprintable():
        return f"is {shown}, which is not printable ASCII"
    if not foreign_pattern.is_match(pattern, value):
        return f"is {shown}, which its pattern does not match"
    return ""


def _filled(text: str, values: Mapping[str, str]) -> str:
    return PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), text)


def _filled_address(key: str, url: str, values: Mapping[str, str]) -> str:
    names = PLACEHOLDER.findall(url)
    if not names:
        return url
    for name in names:
        if not _IN_ADDRESS.fullmatch(values[name]):
            raise BadArg(
                f"parameters.{name} may not stand in {key}: it holds more than letters, digits and"
                " . _ ~ -"
            )
    parts = _ADDRESS.fullmatch(url)
    if parts is None:
        raise BadArg(f"{key} has a placeholder elsewhere than in its host, path or query")
    host, rest = _filled(parts["host"], values), _filled(parts["rest"] or "", values)
    if not _IN_HOST.fullmatch(host):
        raise BadArg(
            f"{key} would have the host {host[:80]!r}, which is none, by parameters.{names[0]}"
        )
    if {".", ".."}.intersection(rest.partition("?")[0].split("/")):
        raise BadArg(f"{key} would have a path with . or .. in it, by parameters.{names[-1]}")
    return f"{parts['scheme']}://{host}{parts['port'] or ''}{rest}"


def _address_fault(url: str, patterns: Mapping[str, str]) -> str:
    """Say what is wrong with where the placeholders of an address stand."""
    shown = repr(url) if "@" not in url else "one with an @, which is not shown"
    if _BRACE.search(PLACEHOLDER.sub("", url)):
        return (
            f"found {shown}, with a brace that is of no placeholder; allowed: {{NAME}}, of"
            f" {NAME_ALLOWED}"
        )
    if not PLACEHOLDER.search(url):
        return ""
    parts = _ADDRESS.fullmatch(url)
    if parts is None or not PLACEHOLDER.sub("", parts["rest"] or "").isprintable():
        return f"found {shown}; allowed: placeholders in the host, the path or the query alone"
    if len(parts["host"]) > HOST_CHARS_MAX:
        return f"found a host of {len(parts['host'])} characters; allowed: {HOST_CHARS_MAX}"
    for host in _hosts(parts["host"], patterns):
        behind = PLACEHOLDER.split(host)[-1]
        labels = behind.split(".")
        if PLACEHOLDER.search(host) and (
            labels[0] or not all(labels[1:]) or (len(labels) < 3 and behind != ".localhost")
        ):
            return (
                f"found {shown}, where a value of many could make the host another's; allowed"
                " behind it: a dot and a domain of two names or more, or a pattern that lists its"
                " values (eu|com)"
            )
    return ""


def _hosts(host: str, patterns: Mapping[str, str]) -> Iterator[str]:
    """Yield a host with every listed value in its place; other placeholders stay."""
    names = [
        name
        for name in dict.fromkeys(PLACEHOLDER.findall(host))
        if _LISTED.fullmatch(patterns[name])
    ]
    listed = [patterns[name].replace("\\", "").split("|") for name in names]
    # Too many to look at each: as if any were allowed.
    if math.prod(map(len, listed)) > VALUES_MAX:
        yield host
        return
    for values in itertools.product(*listed):
        found = dict(zip(names, values, strict=True))
        yield PLACEHOLDER.sub(lambda one, found=found: found.get(one[1], one[0]), host)  # type: ignore[misc]
