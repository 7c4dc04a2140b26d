"""What a package asks for, out of what is installed here."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
CLIENT: list[str] = PROJECT["dependencies"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def asked_for(lines: Iterable[str], *extras: str) -> dict[str, metadata.Distribution]:
    """
    By name what these requirements ask for, what that asks for, and so on.

    ``extras``: of the package whose requirements they are.
    """
    wanted = [(line, extra) for line in lines for extra in ("", *extras)]
    found: dict[str, metadata.Distribution] = {}
    for line, extra in wanted:  # which grows meanwhile
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        one = metadata.distribution(requirement.name)
        assert requirement.specifier.contains(one.version), (
            f"{line}: this environment has {one.version}"
        )
        found[one.name] = one
        names = ("", *requirement.extras)
        further = [(more, name) for more in one.requires or () for name in names]
        wanted += [pair for pair in further if pair not in wanted]
    return found


def modules_of(distributions: Iterable[str]) -> set[str]:
    """The names under which these, and nothing else, are imported."""
    mine = set(distributions)
    return {
        module
        for module, owners in metadata.packages_distributions().items()
        if set(owners) <= mine
    }


@functools.cache
def server_modules() -> set[str]:
    """What cannot be imported where the package is installed without the extra of a node."""
    return modules_of(asked_for([*CLIENT, *EXTRAS["server"]]).keys() - asked_for(CLIENT).keys())
