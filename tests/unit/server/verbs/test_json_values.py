"""What is made of JSON whose form nobody has declared is bounded."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tidewarden.errors import BadArg, TooBig
from tidewarden.server.http.params import decoded
from tidewarden.server.verbs import json_values
from tidewarden.server.verbs.token import fields_of

RUBBISH = b"[" + b"[]," * 349_000 + b"[]]"


def test_a_document_of_very_many_values_is_not_read() -> None:
    for document in (RUBBISH, b'{"x": %b}' % RUBBISH):
        with pytest.raises(TooBig, match="10,000 values"):
            fields_of(document)


def test_what_a_verb_takes_is() -> None:
    names = [f"shop/account-{n}" for n in range(5000)]
    assert fields_of(json.dumps({"accounts": names}).encode()) == {"accounts": names}
    # one long text is one value
    assert fields_of(b'{"access_token": "%b"}' % (b"x" * 1_000_000))


def test_a_wrong_body_is_read_a_second_time_only_where_it_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[int] = []
    decode = msgspec.json.decode

    def counting(document: bytes, **more: Any) -> Any:
        if "type" not in more:
            read.append(len(document))
        return decode(document, **more)

    monkeypatch.setattr(msgspec.json, "decode", counting)
    with pytest.raises(BadArg, match="The body must be"):
        decoded(RUBBISH, dict[str, int])
    assert read == []
    with pytest.raises(BadArg, match="found a list of 1 items"):
        decoded(b"[[]]", dict[str, int])
    assert read == [4]
    assert not json_values.has_many_values(b"[" * json_values.SHORT_BYTES)
