"""
Decides what a node does next with its own store.

Pure. It decides by the facts, read through Raft's quorum at least once since the node's start, by a
look at the store, and by what the primary's node reports of its own.
"""

from __future__ import annotations

from typing import NamedTuple

from tidewarden.raft.store_facts import StoreFacts, StoreMember

from .store_look import StoreData, StoreLook
from .store_report import StoreReport


class Stay(NamedTuple):
    """Does nothing for now."""

    why: str = ""
    """The trouble, or the event that is waited for, in words; empty: all is as it should be."""
    another_please: bool = False
    """Whether another store should be primary."""


class Promote(NamedTuple):
    """Makes the store the primary of the facts' view."""


class LetIn(NamedTuple):
    """Lets clients in: the store is open, but the process that opened it ended before that."""


class Demote(NamedTuple):
    """Demotes the primary and disconnects its clients."""


class Detach(NamedTuple):
    """Lets the store follow nobody: it acknowledges nothing of an older view from here on."""


class Follow(NamedTuple):
    """Lets the store follow the primary."""

    address: str
    """``host:port``, as the primary's node reports it."""
    diverged: bool
    """The store's data may have writes that the primary's have not, and are set aside first."""


Step = Stay | Promote | LetIn | Demote | Detach | Follow


def next_step(
    own: str,
    facts: StoreFacts,
    look: StoreLook,
    primary: StoreReport | None,
    followed: tuple[int, bool],
    let_in: bool,
) -> Step:
    """
    Return what to do next with the store of the node ``own``.

    ``primary``: what the primary's node reports. ``followed``: the view in which this process gave
    the store its primary (0: an earlier process did), and whether the store's address for it is the
    one that the primary reports now. ``let_in``: whether this process knows that clients are let
    in.
    """
    if not facts.view:
        return Demote() if look.role == "master" else Stay("no store is primary yet")
    if facts.primary == own:
        return _as_primary(own, facts, look, let_in)
    if look.role == "master":
        return Demote()
    return _as_another(own, facts, look, primary, followed)


def serves(facts: StoreFacts, look: StoreLook) -> bool:
    """Return whether the store is open as the facts' primary."""
    data = look.data
    return (
        look.role == "master"
        and data is not None
        and StoreMember(look.node, look.incarnation) == facts.primary_member
        and data.view == facts.view
        and data.author == ".".join(facts.primary_member)
    )


def is_open(facts: StoreFacts, primary: StoreReport | None) -> bool:
    """Return whether the facts' primary is open, by what its node reports, and can be reached."""
    return (
        primary is not None
        and primary.serves_view == facts.view
        and primary.incarnation == facts.incarnation
        and bool(primary.address)
    )


def _as_primary(own: str, facts: StoreFacts, look: StoreLook, let_in: bool) -> Step:
    if StoreMember(own, look.incarnation) != facts.primary_member:
        if look.role == "master":
            return Demote()
        if not look.follows_nobody:
            return Detach()
        return Stay("it has restarted since it was made the primary", another_please=True)
    if look.disk_fault:
        return Stay("its log cannot be written: its disk is full, or broken", another_please=True)
    if serves(facts, look):
        return Stay() if let_in else LetIn()
    if look.data is None:
        return Stay("it loads its data, and becomes the primary then")
    return Promote()


def _as_another(
    own: str,
    facts: StoreFacts,
    look: StoreLook,
    primary: StoreReport | None,
    followed: tuple[int, bool],
) -> Step:
    opened = is_open(facts, primary)
    view, same_place = followed
    if not look.follows_nobody:
        # A process before this one let it follow that address, where now the primary is open.
        is_right = view == facts.view or (not view and opened)
        if is_right and same_place:
            return Stay(_progress(look))
        return Detach()
    data = look.data
    if data is None:
        return Stay("it loads its data")
    if data.view > facts.view:
        return Stay(
            f"its data are of view {data.view}, the cluster is in view {facts.view}: it follows no"
            " older data than its own; `tidewarden cluster recover` with its node takes them, or"
            " remove the store's folder while it is stopped to give them up"
        )
    if not opened or primary is None:
        return Stay(f"it waits until {facts.primary}'s store is open as the primary")
    return Follow(primary.address, _diverged(own, facts, data, primary))


def _diverged(own: str, facts: StoreFacts, data: StoreData, primary: StoreReport) -> bool:
    """
    Return whether data may have writes that the primary's have not.

    They may if they are of another history, were written here, or were there before a primary was
    chosen that is not known to have had everything.
    """
    if not data.view:
        return data.has_keys
    if data.founding != primary.founding:
        return True
    if data.view == facts.view:
        return data.author != ".".join(facts.primary_member)  # a view has one author
    return data.view < facts.began or data.author.rpartition(".")[0] == own


def _progress(look: StoreLook) -> str:
    if look.loading:
        return f"it loads a copy of the primary's data ({look.sync_share:.0%})"
    if look.syncing:
        return f"it receives a copy of the primary's data ({look.sync_share:.0%})"
    return "" if look.link_up else "its link to the primary is down"
