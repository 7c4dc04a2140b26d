"""
Says what a client's other accounts show when one refresh has failed.

A single answer lacks this evidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Assessment:
    """Says whose matter a failure is, as the answers to the client's other accounts show it."""

    shared: bool = False
    """
    Others that were well got the same answer, many more than usual: it is no matter of this
    account.
    """
    quarantined: bool = False
    """Refusals of the client's accounts have jumped: none counts, and nobody is given up."""
    sampled: bool = False
    """A quarantine goes on, and has those whom it is for asked one at a time."""
    clustered: bool = False
    """
    More accounts than usual are refused, but too few for a quarantine: it takes a day of refusals
    to give one of them up.
    """
    others: bool = False
    """Other accounts of the client are asked: where none of them was well, none shows anything."""
    judged_s: float = math.inf
    """For how long the answers came that the client is judged by, seconds: an hour, or longer."""
    well_ms: int = 0
    """
    When another account of the client was last refreshed well, unix milliseconds; 0: not known to
    have been.
    """
    released_ms: int = 0
    """
    When an operator looked at the refusals and said that they are true, unix milliseconds; 0:
    nobody did. The next one is enough to give an account up that has not been refreshed well since.
    """


ALONE = Assessment()
"""Nothing is known of any other account."""
