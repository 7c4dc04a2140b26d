"""
Says what a client's other accounts show when one refresh has failed.

A single answer lacks this evidence.
"""

from __future__ import annotations

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
    well_ms: int = 0
    """
    When another account of the client was last refreshed well, unix milliseconds; 0: not known to
    have been.
    """
    refused: int = 0
    """How many accounts the quarantine holds: the next try of each is spread by it."""
    released_ms: int = 0
    """
    When an operator looked at the refusals and said that they are true, unix milliseconds; 0:
    nobody did. The next one is enough to give an account up that has not been refreshed well since.
    """


ALONE = Assessment()
"""Nothing is known of any other account."""
