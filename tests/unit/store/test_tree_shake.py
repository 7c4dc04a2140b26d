"""Each script is sent with the shared functions that it uses, and no others."""

from __future__ import annotations

import pytest

from tidewarden.store.scripts.tree_shake import trim

SHARED = """-- a comment
local STATE = 1
local function small(n) return n + 1 end

-- says what it is for
local function inner()
  if STATE then
    return small(1)
  end
end
local function outer()
  local function nested() return inner() end
  return nested()
end
local AFTER = small
"""


def test_what_is_used_through_another_stays() -> None:
    kept = trim(SHARED, "return outer()")
    assert kept.splitlines()[0] == "local STATE = 1"
    for name in ("small", "inner", "outer"):
        assert f"local function {name}(" in kept
    assert "--" not in kept


def test_what_nobody_uses_goes_and_statements_stay() -> None:
    kept = trim(SHARED, "return 1")
    assert "inner" not in kept
    assert "outer" not in kept
    assert "local function small(n)" in kept, "a statement uses it"
    assert kept.endswith("local AFTER = small\n")


def test_a_function_that_does_not_end_where_it_should() -> None:
    with pytest.raises(ValueError, match="broken has no end"):
        trim("local function broken()\n  return 1\n", "")


def test_two_functions_of_one_name() -> None:
    """The words of the first would not be followed, and what it uses be left out."""
    with pytest.raises(ValueError, match="two Lua functions of one script are called small"):
        trim(SHARED + "local function small(n) return n end\n", "")


def test_a_script_with_a_function_of_the_same_name() -> None:
    with pytest.raises(ValueError, match="a Lua script has a function small of its own"):
        trim(SHARED, "local function small(n) return n end\nreturn small(1)")


def test_nothing_shared() -> None:
    assert trim("", "return 1") == ""
