"""
A compact set of millions of names.

A name takes 12 to 24 bytes, where a set takes 70 and the names themselves more.
"""

from __future__ import annotations

from array import array

# Each grows for itself: neither time nor memory jumps as it would if all were copied at once.
PARTS = 256
SLOTS = 16  # of a part at first; a power of two, as ever after


class NameSet:
    """
    A set of texts that keeps 8 bytes of a hash of each, in tables with open addressing.

    Two texts of one hash are taken for the same: among ten million that happens once in 370,000
    files, and the hash is of another key in each process, so that nobody can make such texts.
    """

    def __init__(self) -> None:
        self._parts = [array("Q", bytes(8 * SLOTS)) for _ in range(PARTS)]
        self._used = [0] * PARTS

    def __len__(self) -> int:
        return sum(self._used)

    def add(self, text: str) -> bool:
        """Remember it; False: it was there."""
        mark = hash(text) & 0xFFFF_FFFF_FFFF_FFFF or 1  # 0 is a free slot
        part = mark >> 56
        slots = self._parts[part]
        at = _place(slots, mark)
        if slots[at]:
            return False
        slots[at] = mark
        self._used[part] += 1
        if self._used[part] * 3 > len(slots) * 2:
            self._parts[part] = _grown(slots)
        return True


def _place(slots: array[int], mark: int) -> int:
    """Where the mark lies, or would."""
    most = len(slots) - 1
    at = mark & most
    while slots[at] and slots[at] != mark:
        at = (at + 1) & most
    return at


def _grown(slots: array[int]) -> array[int]:
    larger = array("Q", bytes(16 * len(slots)))
    for mark in slots:
        if mark:
            larger[_place(larger, mark)] = mark
    return larger
