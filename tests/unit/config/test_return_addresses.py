"""Where browsers may be sent: what no open redirect gets through."""

from __future__ import annotations

import pytest

from tidewarden.config.return_addresses import fault_of, is_allowed, with_result

ONE = ("https://app.example.com/connected",)
BELOW = ("https://app.example.com/a/", "http://127.0.0.1:8000")


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("https://app.example.com/connected", ONE),
        ("https://app.example.com:443/connected", ONE),
        ("https://APP.example.com/connected?user=7&x", ONE),
        ("https://app.example.com/a/", BELOW),
        ("https://app.example.com/a/b/c?d=e", BELOW),
        ("http://127.0.0.1:8000", BELOW),
        ("http://127.0.0.1:8000/anything", BELOW),
    ],
)
def test_what_is_allowed(address: str, allowed: tuple[str, ...]) -> None:
    assert is_allowed(address, allowed)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "/connected",
        "//app.example.com/connected",
        "https:app.example.com/connected",
        "https:///app.example.com/connected",
        "https://app.example.com.evil.example/connected",
        "https://app.example.com@evil.example/connected",
        "https://app.example.com:pw@evil.example/connected",
        "https://evil.example/connected",
        "https://evil.example\\@app.example.com/connected",
        "https://app.example.com\\.evil.example/connected",
        "https://app.example.com./connected",
        "https://app.example.com:444/connected",
        "http://app.example.com/connected",
        "https://app.example.com/connected/more",
        "https://app.example.com/connectedly",
        "https://app.example.com/CONNECTED",
        "https://app.example.com/connected#frag",
        "https://app.example.com/connected?a=\r\nSet-Cookie: x",
        "https://app.example.com/connected?a=b c",
        "https://app.example.com/connected?a=\u00e4",
        "https://app.example.com:99999/connected",
        "https://app.example.com:0/connected",
        "https://[::1/connected",
        "javascript://app.example.com/connected",
        "https://app.example.com/connected?result=connected",
        "https://app.example.com/connected?x=1&error=",
        "https://app.example.com/connected?" + "x" * 1000,
    ],
)
def test_what_is_not(address: str) -> None:
    assert not is_allowed(address, ONE)


@pytest.mark.parametrize(
    "path",
    [
        *("/a/../b", "/a/%2e%2E/b", "/a/./b", "/a/%2Fb", "/a/..%2fb", "/a/x%5Cb", "/b", "/a", "/"),
        *("/a/..;/b", "/a/..;x=1/b", "/a/%2e.;/b"),  # some servers leave out what is behind it
        *("/a/%252e%252e/b", "/a/x%252fb", "/a/x%25255Cb"),  # and some decode twice
    ],
)
def test_nothing_climbs_out_of_a_folder(path: str) -> None:
    assert not is_allowed(f"https://app.example.com{path}", BELOW)


def test_plain_http_is_for_this_machine() -> None:
    assert fault_of("http://localhost:8000/x") == ""
    assert "http:// on another machine" in fault_of("http://app.example.com/x")


def test_a_result_stands_behind_what_is_there() -> None:
    told = {"result": "connected", "account": "shop/a&b"}
    assert with_result("https://a/x", told) == "https://a/x?result=connected&account=shop%2Fa%26b"
    assert with_result("https://a/x?y=1", {"error": "denied"}) == "https://a/x?y=1&error=denied"
