"""Answers as Python values, from both versions of the protocol."""

from __future__ import annotations

from tidewarden.client.replies import Token, mapped, plain, task_info, token


def test_text_where_it_is_text_and_payloads_as_they_are() -> None:
    assert plain([b"a", 1, None, [b"\xff"]]) == ["a", 1, None, [b"\xff"]]
    assert plain({b"payload": b"text", b"name": b"x"}) == {"payload": b"text", "name": "x"}
    assert mapped([b"a", 1, b"b", b"c"]) == mapped({b"a": 1, b"b": b"c"}) == {"a": 1, "b": "c"}


def test_a_task_that_was_looked_at() -> None:
    names = (
        "queue",
        "id",
        "state",
        "payload",
        "priority",
        "due_ms",
        "deadline_ms",
        "attempts",
        "losses",
        "lease",
        "reason",
        "new",
    )
    values = (b"q", b"a", b"ready", b"p", 50, 1, 2, 3, 4, 5, b"", b"later")
    found = task_info(
        [
            item
            for pair in zip((name.encode() for name in names), values, strict=True)
            for item in pair
        ]
    )
    assert (found.id, found.payload, found.losses, found.fields["new"]) == ("a", b"p", 4, "later")


def test_a_token_is_read_from_nodes_of_any_version() -> None:
    row = [b"at", b"Bearer", 9, 4, b"fresh"]
    assert token(row) == Token("at", "Bearer", 9, 4, "fresh")
    found = token([*row, b'{"instance_url": "https://x", "ok": true}', b"later"])
    assert (found.access_token, found.extras) == ("at", {"instance_url": "https://x", "ok": True})


def test_a_token_is_not_shown() -> None:
    assert "secret" not in repr(Token("secret", "Bearer", 1, 1, "fresh"))
