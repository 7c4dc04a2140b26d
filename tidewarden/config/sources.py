"""
Reads settings from a TOML file, then the environment, then flags.

Each value remembers where it came from.

Knows no setting by name: :mod:`tidewarden.config.settings` declares them as dataclass fields made
with :func:`setting`. Problems are collected, never raised one by one, so that one start shows them
all.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, get_type_hints

from tidewarden.errors import ConfigError

T = TypeVar("T")
Keys = Mapping[str, frozenset[str]]
NO_KEYS: Keys = MappingProxyType({})

PREFIX = "TIDEWARDEN_"
# Kubernetes sets these for every service in the namespace; one called "tidewarden" must not stop
# the start.
_KUBERNETES = re.compile(
    r"_SERVICE_HOST$|_SERVICE_PORT(_.*)?$|^TIDEWARDEN_PORT$|_PORT_\d+_(TCP|UDP|SCTP)(_.*)?$"
)

_HEADER = re.compile(r"^\s*\[\[?\s*([^\]#]+?)\s*\]\]?")
_ASSIGNMENT = re.compile(r"""^\s*((?:[A-Za-z0-9_.-]|"[^"]*"|'[^']*')+)\s*=""")


def setting(
    default: Any,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    pattern: str = "",
    allowed: str = "",
    required: bool = False,
    secret: bool = False,
    path: bool = False,
    show: bool = True,
) -> Any:
    """
    Define one field of a section, with its bounds.

    Args: ``low`` and ``high`` bound a number, both included. ``pattern`` must match a whole text,
    ``allowed`` says it in words. ``required`` ones are never empty. ``secret`` values never appear
    in a problem. ``path`` values may begin with ``~``. ``show=False`` keeps the field out of
    ``repr``.
    """
    limits = {
        "low": low,
        "high": high,
        "choices": choices,
        "pattern": pattern,
        "allowed": allowed,
        "required": required,
        "secret": secret,
        "path": path,
    }
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=limits, repr=show)
    return field(default=default, metadata=limits, repr=show)


@dataclass(frozen=True, slots=True)
class Found:
    """
    Holds a value and where it was written, such as ``config.toml:12``.

    ``text`` is set if it came as text (environment, flag).

    ``entries`` says the same of each entry of a map that has a line of its own.
    """

    value: Any
    origin: str
    text: bool = False
    entries: Mapping[str, str] = field(default_factory=dict)


def nearest(name: str, known: Iterable[str]) -> str:
    """Ask ``did you mean …?`` when a known name is near, else list the known names."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(names)}"


class Sources:
    """
    Holds the written settings by section and key.

    Examples: ``tables["node"]["name"]``, ``tables["providers.NAME"]["token_url"]``.

    ``users`` holds the ``[[users]]`` tables in order. ``families`` are further sections of the form
    ``[FAMILY.NAME]``, with their keys. ``problems`` gathers what cannot be used.
    """

    def __init__(
        self, sections: Keys, provider_keys: frozenset[str], families: Keys = NO_KEYS
    ) -> None:
        self.problems: list[str] = []
        self.tables: dict[str, dict[str, Found]] = {name: {} for name in sections}
        self.users: list[dict[str, Found]] = []
        self._sections = sections
        self._provider_keys = provider_keys
        self._families = families

    def read_file(self, path: str) -> None:
        """
        Take in a TOML file.

        Raises: ConfigError: it cannot be read or is no TOML; nothing further can be said about it
        then.
        """
        try:
            text = Path(path).read_text("utf-8")
            document = tomllib.loads(text)
        except OSError as error:
            raise ConfigError([f"{path}: cannot be read: {error.strerror or error}"]) from error
        except UnicodeDecodeError as error:
            raise ConfigError([f"{path}: is not UTF-8 at byte {error.start}"]) from error
        except tomllib.TOMLDecodeError as error:
            raise ConfigError([f"{path}: is not TOML: {error}"]) from error
        lines = lines_of(text)
        for name, value in document.items():
            if name == "users":
                self._file_users(path, value, lines)
            elif name == "providers":
                self._file_providers(path, value, lines)
            elif name in self._families:
                self._file_providers(path, value, lines, name)
            elif name not in self._sections:
                known = [*self._sections, "providers", "users", *self._families]
                self.problems.append(
                    f"{line_at(path, lines, name)}: unknown section {name!r};"
                    f" {nearest(name, known)}"
                )
            else:
                self._file_table(path, name, value, lines)

    def read_environ(self, environ: Mapping[str, str], clients_own: frozenset[str]) -> None:
        """
        Take in ``TIDEWARDEN_SECTION_KEY`` variables.

        ``clients_own`` are variables of the command line.
        """
        given = sorted(variable for variable in environ if variable.startswith(PREFIX))
        known = self._named_by(given)
        for variable, (section, key) in known.items():
            self.tables[section][key] = Found(
                environ[variable], f"environment {variable}", text=True
            )
        # What a setting such as vault.key_env names is no setting itself.
        named = [
            found.value
            for table in self.tables.values()
            for key, found in table.items()
            if key.endswith("_env")
        ]
        for variable in given:
            if (
                variable not in known
                and variable not in clients_own
                and variable not in named
                and not _KUBERNETES.search(variable)
            ):
                names = [_variable(section, key) for section, key in self._names()]
                self.problems.append(
                    f"environment {variable}: unknown setting; {nearest(variable, names)}"
                )

    def read_flags(self, flags: Mapping[str, str]) -> None:
        """
        Take in ``section.key`` flags.

        ``providers.NAME.key`` may name a provider that the file does not have.
        """
        for flag, text in flags.items():
            section, _, key = flag.rpartition(".")
            if (
                section.startswith("providers.")
                and section != "providers."
                and key in self._provider_keys
            ):
                self.tables.setdefault(section, {})
            if section not in self.tables or key not in self._keys(section):
                known = [
                    f"{known_section}.{known_key}" for known_section, known_key in self._names()
                ]
                self.problems.append(f"flag {flag}: unknown setting; {nearest(flag, known)}")
            else:
                self.tables[section][key] = Found(text, f"flag {flag}", text=True)

    def _named_by(self, variables: list[str]) -> dict[str, tuple[str, str]]:
        """
        Return the section and key that each variable names; one that names none has no entry.

        With thousands of providers the names of all their settings would take seconds to make.
        """
        found: dict[str, tuple[str, str]] = {}
        for section in self.tables if variables else ():
            beginning = f"{_variable(section)}_"
            for variable in variables:
                if variable.startswith(beginning):
                    for key in sorted(self._keys(section)):
                        if variable == _variable(section, key):
                            found[variable] = section, key
        return found

    def _keys(self, section: str) -> frozenset[str]:
        family, dot, _ = section.partition(".")
        if dot and family in self._families:
            return self._families[family]
        return self._provider_keys if section.startswith("providers.") else self._sections[section]

    def _names(self) -> list[tuple[str, str]]:
        """
        List every (section, key) that may be set; a variable names a provider ``providers_NAME``.
        """
        return [(section, key) for section in self.tables for key in sorted(self._keys(section))]

    def _file_table(self, path: str, name: str, value: Any, lines: dict[str, int]) -> None:
        where = line_at(path, lines, name)
        if not isinstance(value, dict):
            self.problems.append(
                f"{where}: {name}: found {_shown(value)}; allowed is a section [{name}]"
            )
            return
        known = self._keys(name)
        table = self.tables[name]
        for key, item in value.items():
            where = line_at(path, lines, f"{name}.{key}", name)
            if key in known:
                names = item if isinstance(item, dict) else ()
                table[key] = Found(
                    item,
                    where,
                    entries={
                        entry: line_at(path, lines, f"{name}.{key}.{entry}", f"{name}.{key}")
                        for entry in names
                    },
                )
            else:
                self.problems.append(
                    f"{where}: unknown setting {name}.{key}; {nearest(key, known)}"
                )

    def _file_providers(
        self, path: str, value: Any, lines: dict[str, int], family: str = "providers"
    ) -> None:
        if not isinstance(value, dict):
            self.problems.append(
                f"{line_at(path, lines, family)}: {family}: allowed are sections [{family}.NAME]"
            )
            return
        for provider, table in value.items():
            name = f"{family}.{provider}"
            # where the section itself stands
            self.tables[name] = {"": Found(None, line_at(path, lines, name))}
            self._file_table(path, name, table, lines)

    def _file_users(self, path: str, value: Any, lines: dict[str, int]) -> None:
        if not isinstance(value, list) or not all(isinstance(user, dict) for user in value):
            self.problems.append(
                f"{line_at(path, lines, 'users')}: users: allowed are sections [[users]]"
            )
            return
        for number, user in enumerate(value):
            name = f"users[{number}]"
            self.users.append(
                {
                    key: Found(item, line_at(path, lines, f"{name}.{key}", name))
                    for key, item in user.items()
                }
            )


def read(cls: type[T], section: str, table: dict[str, Found], problems: list[str]) -> T:
    """
    Make an instance of the dataclass ``cls`` from ``table``.

    A value that cannot be used becomes a problem and keeps its default.

    ``section`` names it in problems. Keys of ``table`` that ``cls`` does not have are the caller's
    to judge.
    """
    hints = _hints(cls)  # type: ignore[arg-type]  # mypy takes a type variable for unhashable
    values: dict[str, Any] = {}
    for item in dataclasses.fields(cls):  # type: ignore[arg-type]  # T is always one of our dataclasses
        limits = item.metadata
        if not limits:
            continue
        name = f"{section}.{item.name}"
        found = table.get(item.name)
        if found is None:
            if limits["required"] and not item.default:
                where = f"{table[''].origin}: " if "" in table else ""
                problems.append(f"{where}{name}: missing; allowed: {limits['allowed'] or 'a text'}")
            continue
        try:
            values[item.name] = _convert(found, hints[item.name], limits)
        except ValueError as error:
            what = "a value that is not shown" if limits["secret"] else _shown(found.value)
            problems.append(f"{found.origin}: {name}: found {what}; allowed: {error}")
    return cls(**values)


@cache
def _hints(cls: type) -> Mapping[str, Any]:
    return get_type_hints(cls)


def _convert(found: Found, hint: Any, limits: Mapping[str, Any]) -> Any:
    """Convert a value to its type. Raises: ValueError: what is allowed, in words."""
    value = found.value
    if hint is bool:
        return _yes_or_no(found)
    if hint in (int, float):
        return _number(found, hint, limits)
    if hint == dict[str, str]:
        return _mapping(found, limits)
    if hint == tuple[str, ...]:
        return _texts(found, limits)
    if hint == tuple[int, ...]:
        return _numbers(found, limits)
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(limits["allowed"] or "a text")
    if limits["choices"] and value not in limits["choices"]:
        raise ValueError("one of " + ", ".join(repr(choice) for choice in limits["choices"]))
    if limits["required"] and not value:
        raise ValueError(limits["allowed"] or "a text that is not empty")
    if limits["pattern"] and not re.fullmatch(limits["pattern"], value):
        raise ValueError(limits["allowed"])
    return os.path.expanduser(value) if limits["path"] else value


def _yes_or_no(found: Found) -> bool:
    value = {"true": True, "false": False}.get(found.value.lower()) if found.text else found.value
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _number(found: Found, hint: type[int] | type[float], limits: Mapping[str, Any]) -> int | float:
    low, high = limits["low"], limits["high"]
    kind = "a whole number" if hint is int else "a number"
    between = f" from {low:,}" if low is not None else ""
    between += f" to {high:,}" if high is not None else ""
    allowed = ValueError(f"{kind}{between}{', ' + limits['allowed'] if limits['allowed'] else ''}")
    value = found.value
    if found.text:
        try:
            value = hint(value)
        except ValueError:
            raise allowed from None
    if isinstance(value, bool) or not isinstance(value, int if hint is int else (int, float)):
        raise allowed
    if (
        not math.isfinite(value)
        or (low is not None and value < low)
        or (high is not None and value > high)
    ):
        raise allowed
    return hint(value)


def _mapping(found: Found, limits: Mapping[str, Any]) -> dict[str, str]:
    """Read a table of texts; as text it is written ``name=value,name=value``."""
    value = found.value
    if found.text:
        pairs = [item.partition("=") for item in value.split(",") if item.strip()]
        value = {name.strip(): text.strip() for name, _, text in pairs}
    if not isinstance(value, dict) or not all(
        isinstance(text, str) and text for text in value.values()
    ):
        raise ValueError(limits["allowed"])
    return dict(value)


def _texts(found: Found, limits: Mapping[str, Any]) -> tuple[str, ...]:
    """Read a list of texts, each of the pattern; as text it is written ``one,other``."""
    value = (
        [item.strip() for item in found.value.split(",") if item.strip()]
        if found.text
        else found.value
    )
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"a list of {limits['allowed']}")
    if not all(re.fullmatch(limits["pattern"], item) for item in value):
        raise ValueError(f"a list of {limits['allowed']}")
    return tuple(value)


def _numbers(found: Found, limits: Mapping[str, Any]) -> tuple[int, ...]:
    """Read a list of whole numbers, each within the bounds; as text it is written ``30,7``."""
    low, high = limits["low"], limits["high"]
    allowed = ValueError(f"a list of whole numbers from {low:,} to {high:,}")
    value = found.value
    if found.text:
        words = [word.strip() for word in value.split(",") if word.strip()]
        if not all(word.isascii() and word.isdigit() for word in words):
            raise allowed
        value = [int(word) for word in words]
    if not isinstance(value, list) or not all(
        type(one) is int and low <= one <= high for one in value
    ):
        raise allowed
    return tuple(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _variable(*names: str) -> str:
    return PREFIX + re.sub(r"[^A-Z0-9]", "_", "_".join(names).upper())


def line_at(path: str, lines: dict[str, int], *names: str) -> str:
    """Return ``file:line`` of the first of ``names`` that has a line, else the file alone."""
    return next((f"{path}:{lines[name]}" for name in names if name in lines), path)


def lines_of(text: str) -> dict[str, int]:
    """
    Return the line of each section and key, by dotted name; ``[[users]]`` are numbered.

    ``tomllib`` tells none. This reads the usual forms; what it misses costs a message its line,
    nothing else.
    """
    lines: dict[str, int] = {}
    section = ""
    counts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            section = header[1].replace('"', "").replace("'", "")
            if line.lstrip().startswith("[["):
                counts[section] = counts.get(section, -1) + 1
                lines.setdefault(section, number)
                section = f"{section}[{counts[section]}]"
            lines.setdefault(section, number)
            lines.setdefault(section.partition(".")[0], number)
        elif assignment := _ASSIGNMENT.match(line):
            key = assignment[1].replace('"', "").replace("'", "")
            lines.setdefault(f"{section}.{key}" if section else key, number)
    return lines
