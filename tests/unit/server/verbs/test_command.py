"""What a verb is to the door."""

from __future__ import annotations

import pytest

from tidewarden.server.access.required_rights import LOGIN
from tidewarden.server.verbs import command as verbs
from tidewarden.server.verbs.command import Command, meant


def test_misuse_shows_the_form() -> None:
    command = Command("X.DO", lambda connection, request: b"", 2, 3, LOGIN, "one [two]")
    assert (
        str(command.misused([b"X.DO"])) == "X.DO has 0 arguments here; its form is: X.DO one [two]"
    )


def test_a_word_is_compared_with_all_verbs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    meant.cache_clear()
    compared: list[str] = []
    monkeypatch.setattr(
        verbs.difflib, "get_close_matches", lambda word, *_: compared.append(word) or ["Q.PUT"]
    )
    assert {meant("Q.PIT", ("Q.PUT",)) for _ in range(500)} == {"; did you mean Q.PUT?"}
    assert meant("GET", ("Q.PUT",)) == ""
    assert compared == ["Q.PIT"]
