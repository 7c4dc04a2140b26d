"""What is logged of a process's connections to one store."""

from __future__ import annotations

import logging

import pytest

from tidewarden.store.link_log import COMPLAINTS_MAX, LinkLog

LINKS = [f"link {number}" for number in range(12)]


def test_a_store_that_goes_and_comes_back_is_two_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="tidewarden.store")
    told = LinkLog()
    for link in LINKS:
        told.back(link, "store", "a:1")
    assert caplog.messages == [], "the first connections are no news"
    for link in LINKS:
        told.lost(link, "store", "a:1")
    for link in LINKS:
        told.refused(link, "the store at a:1 does not answer: refused")
    for link in LINKS:
        told.back(link, "store", "b:1")
    assert caplog.messages == [
        "the connection to the store at a:1 was lost",
        "the store at a:1 does not answer: refused; trying again",
        "connected to the store again, at b:1",
    ]


def test_the_next_outage_is_said_anew(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="tidewarden.store")
    told = LinkLog()
    for turn in range(3):
        told.left("data", "store", "a:1", "b:1 is the primary now")
        told.lost("data", "store", "a:1")
        told.refused("data", "it loads")
        told.back("data", "store", "b:1")
        assert len(caplog.messages) == 3 * (turn + 1)


def test_one_that_is_not_wanted_any_more_keeps_nothing_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="tidewarden.store")
    told = LinkLog()
    told.lost("data", "store", "a:1")
    told.lost("commit", "store", "a:1")
    told.forget("commit")
    told.back("data", "store", "a:1")
    assert caplog.messages[-1] == "connected to the store again, at a:1"


def test_reasons_without_end_are_cut(caplog: pytest.LogCaptureFixture) -> None:
    told = LinkLog()
    for number in range(5 * COMPLAINTS_MAX):
        told.refused("data", f"reason {number}")
    assert len(caplog.messages) == COMPLAINTS_MAX
