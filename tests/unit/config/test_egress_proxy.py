"""Which proxy a provider is asked through, as it is set and as the environment says."""

from __future__ import annotations

import pytest

from tidewarden.config.egress import proxy_fault, proxy_of

TOKEN_URL = "https://login.example.org/token"


@pytest.mark.parametrize(
    ("environ", "url", "proxy"),
    [
        ({}, TOKEN_URL, ""),
        ({"https_proxy": "http://p:1"}, TOKEN_URL, "http://p:1"),
        ({"HTTPS_PROXY": "http://p:1"}, TOKEN_URL, "http://p:1"),
        ({"HTTPS_PROXY": "http://p:1", "https_proxy": "http://q:2"}, TOKEN_URL, "http://q:2"),
        ({"HTTPS_PROXY": "p:1"}, TOKEN_URL, "http://p:1"),  # As curl reads it.
        ({"http_proxy": "http://p:1"}, TOKEN_URL, ""),
        ({"http_proxy": "http://p:1"}, "http://login.example.org/token", "http://p:1"),
        ({"all_proxy": "http://p:1"}, TOKEN_URL, "http://p:1"),
        ({"https_proxy": "", "all_proxy": "http://p:1"}, TOKEN_URL, "http://p:1"),
        ({"https_proxy": "http://p:1", "no_proxy": "*"}, TOKEN_URL, ""),
        ({"https_proxy": "http://p:1", "no_proxy": "other.org, example.org"}, TOKEN_URL, ""),
        ({"https_proxy": "http://p:1", "NO_PROXY": ".example.org"}, TOKEN_URL, ""),
        ({"https_proxy": "http://p:1", "no_proxy": "LOGIN.example.org:443"}, TOKEN_URL, ""),
        (
            {"https_proxy": "http://p:1", "no_proxy": "login.example.org:8443"},
            TOKEN_URL,
            "http://p:1",
        ),
        (
            {"https_proxy": "http://p:1", "no_proxy": "ample.org,gin.example.org"},
            TOKEN_URL,
            "http://p:1",
        ),
        (
            {"https_proxy": "http://p:1", "no_proxy": "10.0.0.0/8,10.1.2.3"},
            "https://10.1.2.3/token",
            "",
        ),
        ({"https_proxy": "http://p:1", "no_proxy": "10.0.0.0/8"}, "https://10.9.9.9/token", ""),
        (
            {"https_proxy": "http://p:1", "no_proxy": "10.0.0.0/8,bad/8"},
            "https://11.0.0.1/t",
            "http://p:1",
        ),
    ],
)
def test_the_environment_says_which(environ: dict[str, str], url: str, proxy: str) -> None:
    assert proxy_of("environment", url, environ) == proxy


def test_one_that_is_set_is_taken_whatever_the_environment_says() -> None:
    assert proxy_of("", TOKEN_URL, {"https_proxy": "http://p:1"}) == ""
    assert (
        proxy_of("http://q:2", TOKEN_URL, {"https_proxy": "http://p:1", "no_proxy": "*"})
        == "http://q:2"
    )


@pytest.mark.parametrize(
    "good", ["http://p:3128", "http://p", "http://[::1]:3128/", "http://us%40er:pa%3Ass@p:3128"]
)
def test_what_a_proxy_may_be(good: str) -> None:
    assert proxy_fault(good) == ""


@pytest.mark.parametrize(
    "bad",
    ["p:3128", "https://p:3128", "socks5://p:1", "http://", "http://:1", "http://p:0", "http://p:99999", "http://p/x",
     "http://p?x", "http://p#x", "http://p q:1", "http://us\ner:hunter2@p:1", "http://hunter2%C3%A4:x@p", "http://:hunter2@p"],
)  # fmt: skip
def test_what_a_proxy_may_not_be(bad: str) -> None:
    assert "allowed: http://" in proxy_fault(bad)
    assert "hunter2" not in proxy_fault(bad)
