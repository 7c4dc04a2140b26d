"""Options as words of the wire."""

from __future__ import annotations

import pytest

from tidewarden.client.options import as_json, checked, encoded, put_words, words
from tidewarden.errors import BadArg


def test_put_words() -> None:
    assert put_words({"delay_ms": 5, "priority": 0, "lane": "a", "if_exists": "fail"}) == (
        "DELAY", 5, "PRIORITY", 0, "LANE", "a", "IFEXISTS", "fail",
    )  # fmt: skip
    assert put_words({"delay_ms": None}) == ()  # type: ignore[typeddict-item]
    with pytest.raises(BadArg, match="delay is no option of a put; allowed: delay_ms, at_ms"):
        put_words({"delay": 5})  # type: ignore[typeddict-unknown-key]


@pytest.mark.parametrize("value", [0.5, True, ["x"], object()])
def test_only_integers_and_texts_go_out(value: object) -> None:
    with pytest.raises(BadArg, match="x is "):
        checked("x", value)


def test_words_leave_out_what_is_none() -> None:
    assert words(delay=0, reason=None, result=b"") == ("DELAY", 0, "RESULT", b"")


def test_results_and_payloads() -> None:
    assert encoded(b"\xff") == b"\xff"
    assert encoded("ü") == "ü".encode()
    assert encoded({"a": 1}) == b'{"a":1}'
    assert as_json("ü") == '"ü"'.encode()
    with pytest.raises(TypeError):
        encoded(object())
