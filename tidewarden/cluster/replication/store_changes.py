"""Words the changes between two states of the facts about replicated stores, for people."""

from __future__ import annotations

from typing import NamedTuple

from tidewarden.raft.store_facts import LOSSES, StoreFacts

ELECTED = "store.elected"
ADDED = "store.added"
REMOVED = "store.removed"
RECOVERED = "store.recovered"
CONFIRMED = "store.confirmed"


class StoreChange(NamedTuple):
    """Describes one change of who is primary, or in sync."""

    kind: str
    """The kind of event, one of those above: see ``config.webhooks.EVENT_KINDS``."""
    node: str
    """The node whose store the change is about; empty: none."""
    view: int
    """The view after the change."""
    version: int
    """The facts' version after the change."""
    text: str
    """The change in one sentence."""

    @property
    def is_unclean(self) -> bool:
        """Return whether acknowledged writes may be missing from now on."""
        return self.kind == RECOVERED


def changes_between(before: StoreFacts, after: StoreFacts) -> list[StoreChange]:
    """
    Return the changes, in the order in which they are told.

    Several commands may lie between the two states; they are told as one change each.
    """
    if after.version == before.version:
        return []
    found = []
    if after.view != before.view:
        found.append(_new_primary(before, after))
    elected = {after.primary} if after.view != before.view else set()
    for node in sorted(after.nodes_in_sync - before.nodes_in_sync - elected):
        text = f"{node}'s store is in sync; all in sync: {_names(after)}"
        found.append(StoreChange(ADDED, node, after.view, after.version, text))
    for node in sorted(before.nodes_in_sync - after.nodes_in_sync):
        text = f"{node}'s store is not in sync any more; still in sync: {_names(after)}"
        found.append(StoreChange(REMOVED, node, after.view, after.version, text))
    if before.loss and not after.loss:
        text = f"somebody knows of the loss ({before.loss}) of a last resort"
        found.append(StoreChange(CONFIRMED, "", after.view, after.version, text))
    return found


def _new_primary(before: StoreFacts, after: StoreFacts) -> StoreChange:
    named = f"{after.primary}'s store is the primary (view {after.view})"
    if LOSSES.index(after.loss) > LOSSES.index(before.loss):
        text = (
            f"{named} by a last resort, and acknowledged writes may be missing ({after.loss}):"
            " `tidewarden cluster confirm` ends this warning"
        )
        return StoreChange(RECOVERED, after.primary, after.view, after.version, text)
    former = f" after {before.primary}'s" if before.primary not in ("", after.primary) else ""
    text = f"{named}{former}; in sync: {_names(after)}"
    return StoreChange(ELECTED, after.primary, after.view, after.version, text)


def _names(facts: StoreFacts) -> str:
    return " ".join(sorted(facts.nodes_in_sync)) or "nobody"
