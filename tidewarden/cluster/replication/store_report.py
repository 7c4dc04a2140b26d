"""Makes and reads the report of a node on its own store, which it sends to the other members."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

DISK_FULL = "its disk is full"
"""The beginning of :attr:`StoreReport.why` if there is hardly any room for the store."""


@dataclass(frozen=True, slots=True)
class StoreReport:
    """Describes one node's store, as the node itself saw it last."""

    incarnation: str = ""
    """The incarnation of the running store; empty: none runs, or it does not answer."""
    continues: tuple[str, ...] = ()
    """Earlier incarnations whose every write this store's data have, newest last."""
    loading: bool = False
    """It loads its log, or the copy of a full sync: it can take no role meanwhile."""
    view: int = 0
    """The view in its data; 0: it has no data of this cluster."""
    seq: int = 0
    """The number of the last mark within that view."""
    founding: str = ""
    """The word drawn when its history began; a store of another word has other data."""
    offset: int = 0
    """The store's offset in the replication stream."""
    role: str = ""
    """``master`` or ``slave``, as the server says."""
    serves_view: int = 0
    """The view in which it is open as the primary; 0: it is not."""
    follows: str = ""
    """The store that a replica follows with the link up, as ``node.incarnation``."""
    sync_share: float = 0.0
    """The share of a full sync under way that was received, 0 to 1."""
    fsync: str = ""
    """``always`` or ``everysec``."""
    pid: int = 0
    another_please: bool = False
    """The node asks that another store be primary: its own is gone, hangs, or has no quorum."""
    leaving: bool = False
    """The node is about to stop with its store, which is to leave the set before."""
    stopping: bool = False
    """The node is about to stop, whatever becomes of its store."""
    address: str = ""
    """``host:port`` at which other nodes reach the store."""
    why: str = ""
    """The trouble of the store, in words; empty: it has none."""

    def plain(self) -> tuple[Any, ...]:
        """Return plain values, for :func:`read_report`."""
        values: tuple[Any, ...] = _VALUES(self)
        return values

    @property
    def acted_on(self) -> tuple[Any, ...]:
        """Return the fields on which other nodes act at once; the rest changes with every look."""
        return (
            self.incarnation,
            self.loading,
            self.view,
            self.role,
            self.serves_view,
            self.follows,
            self.another_please,
            self.leaving,
            self.stopping,
            self.address,
        )

    @property
    def stays(self) -> bool:
        """Return whether the store's node goes on, so that it is a better primary than others."""
        return not (self.leaving or self.stopping)


_VALUES = attrgetter(*(field.name for field in dataclasses.fields(StoreReport)))
_TYPES = tuple(
    type(getattr(StoreReport(), field.name)) for field in dataclasses.fields(StoreReport)
)


def read_report(value: object) -> StoreReport | None:
    """Return the report that :meth:`StoreReport.plain` made; None: it is none. Never raises."""
    if not isinstance(value, tuple) or tuple(type(item) for item in value) != _TYPES:
        return None
    if not all(isinstance(word, str) for word in value[1]):
        return None
    return StoreReport(*value)


class ReadReports:
    """Reads the nodes' last reports; one that says the same as before is not read again."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[object, StoreReport | None]] = {}
        """The last report of each node, as it came and as it was read."""

    def of(self, node: str, plain: object) -> StoreReport | None:
        """Return a node's report; None: it sent none that can be read."""
        said, report = self._read.get(node, (None, None))
        if said is not plain:
            report = read_report(plain)
            self._read[node] = plain, report
        return report

    def all(self, heard: Mapping[str, tuple[float, tuple[Any, ...]]]) -> dict[str, StoreReport]:
        """Return the reports of all nodes that sent one that can be read."""
        found = {node: self.of(node, plain) for node, (_, plain) in heard.items()}
        return {node: report for node, report in found.items() if report is not None}
