"""One tree of errors, one table of words, the same at every door."""

from __future__ import annotations

import pytest

from tidewarden import errors
from tidewarden.errors import BY_CODE, BadArg, ConfigError, Error, Field, NotHeld, from_wire


@pytest.mark.parametrize("code", sorted(BY_CODE))
def test_every_word_is_well_formed_and_explained(code: str) -> None:
    cls = BY_CODE[code]
    assert code == cls.code
    assert code.isupper()
    assert code.isalpha()
    assert cls.__doc__
    assert 400 <= cls.http_status <= 599


def test_every_error_is_in_the_table_under_a_word_of_its_own() -> None:
    classes = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, Error)
    ]
    assert sorted(cls.code for cls in classes) == sorted(BY_CODE)


def test_fields_have_the_names_of_the_door() -> None:
    error = BadArg(Field("ttl_ms"), " is 5 in ", Field("zone", "TZ"), " and TTL, {} %s")
    assert str(error) == "TTL is 5 in TZ and TTL, {} %s"
    assert error.http_message == "ttl_ms is 5 in zone and TTL, {} %s"
    assert BadArg("TTL").http_message == str(BadArg("TTL")) == "TTL", "no word is looked for"
    assert str(Error()) == Error().http_message == ""


def test_an_error_line_becomes_its_error() -> None:
    error = from_wire("NOTHELD the task a is not held")
    assert type(error) is NotHeld
    assert str(error) == "the task a is not held"


@pytest.mark.parametrize(
    "line", ["", "WRONGTYPE Operation against", "notheld x", "NOTHELDX y", "CONFIG no such thing"]
)
def test_an_unknown_line_becomes_a_plain_error_that_says_it_all(line: str) -> None:
    error = from_wire(line)
    assert type(error) is Error
    assert str(error) == line


def test_a_configuration_error_says_every_problem() -> None:
    error = ConfigError(["one", "two"])
    assert error.problems == ["one", "two"]
    assert str(error) == "one\ntwo"
