"""
What it means for people that a node is no member of its cluster: plain decisions over what the
thread saw.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidewarden.config.load import Config

from .membership import ANOTHER_FOLDER, NOT_THERE, Members
from .state import RaftView, base_address


def difference(members: Members, seeds: Mapping[str, str]) -> str:
    """That the configuration's members are not the cluster's; "" when they are."""
    committed = members.addresses()
    if committed == seeds:
        return ""
    found = f"the members are {_shown(committed)} (version {members.version}), as committed"
    return f"{found}; cluster.members names {_shown(seeds)}, which counts at a first start only"


def _shown(addresses: Mapping[str, str]) -> str:
    return ", ".join(
        f"{name} at {base_address(address)}" for name, address in sorted(addresses.items())
    )


def estranged(sight: RaftView, config: Config) -> str:
    """
    Why the node is no member any more, or not yet; "" when it is one, or nobody has told it
    otherwise.
    """
    name = config.node.name
    if sight.members is None:
        way = f"tidewarden cluster join {name} HOST:{config.node.base_port}"
        return (
            f"waits to be let in: {way}, asked of a member" if config.node.role == "joining" else ""
        )
    if sight.removed_because == ANOTHER_FOLDER:
        return "no member any more: another folder has its name"
    if sight.removed_because == NOT_THERE or name not in sight.members.seats:
        return "no member of the cluster any more"
    return ""


def fatal(sight: RaftView, config: Config) -> str:
    """Why a node whose folder is new must not go on; "": it may."""
    name, node = config.node.name, config.node
    if sight.members is not None or not sight.removed_because:
        return ""
    way = (
        f"`tidewarden cluster join {name} HOST:{node.base_port}` asked of a member, then start it"
        " with --join"
    )
    if sight.removed_because == ANOTHER_FOLDER:
        found = (
            f"found {node.data_dir!r}, which is new, while the members know {name} by another"
            " folder"
        )
        allowed = (
            "allowed: that folder, for its votes are in it; without it `tidewarden cluster leave"
            f" {name}`, {way}"
        )
        return f"node.data_dir: {found}; {allowed}"
    if node.role == "joining":
        return ""
    return (
        f"node.name: found {name!r}, which is no member of the cluster that cluster.members names;"
        f" allowed: {way}"
    )
