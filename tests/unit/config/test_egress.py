"""What a provider that was put may reach: no address but public ones, and what the file names."""

from __future__ import annotations

from typing import Any

import pytest

from tidewarden.config.egress import Reach, reach_of
from tidewarden.config.load import load
from tidewarden.config.settings import Tokens
from tidewarden.config.stored_provider import hosts_of, provider_from
from tidewarden.errors import BadArg, ConfigError

GOOD: dict[str, Any] = {
    "token_url": "https://x.example/token",
    "client_id": "c",
    "client_secret": "s",
}
NOT_PUBLIC = (
    "127.0.0.1", "127.9.9.9", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254",
    "100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "198.18.0.1", "224.0.0.1",
    "240.0.0.1", "255.255.255.255", "::1", "::", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
    "::127.0.0.1", "fd00:ec2::254", "fe80::1%eth0", "fe80::1", "fec0::1", "ff02::1",
    "64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::", "2002:a00:1::", "2001:db8::1", "x", "",
)  # fmt: skip


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_what_is_not_public_is_not_reached(address: str) -> None:
    assert not Reach().permits(address)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_what_is_public_is_reached(address: str) -> None:
    assert Reach().permits(address)


def test_what_the_file_names_is_reached_and_no_more() -> None:
    reach = reach_of(["10.1.0.0/16", "127.0.0.1", "fd00::/8"], [])
    for address in ("10.1.2.3", "127.0.0.1", "::ffff:127.0.0.1", "fd00::1", "8.8.8.8"):
        assert reach.permits(address), address
    for address in ("10.2.0.1", "127.0.0.2", "::1", "fe80::1"):
        assert not reach.permits(address), address


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({"token_url": "https://127.0.0.1/t"}, "token_url: found an address that is not public"),
        ({"token_url": "https://[::1]/t"}, "token_url: found an address that is not public"),
        ({"token_url": "https://localhost/t"}, "token_url: found an address that is not public"),
        ({"token_url": "https://a.localhost./t"}, "token_url: found an address that is not public"),
        ({"token_url": "http://127.0.0.1/t"}, "token_url: found an address that is not public"),
        ({"token_url": "http://localhost:1/t"}, "token_url: found an address that is not public"),
        ({"token_url": "http://x.example/t", "plain_http": True}, "token_url: found http://, which"),
        ({"token_url": "http://8.8.8.8/t", "plain_http": True}, "token_url: found http://, which"),
        ({"revocation_url": "https://10.0.0.1/r"}, "revocation_url: found an address that is not"),
        ({"proxy": "http://p.example:3128"}, "proxy: found one, which a provider that was put may"),
        ({"headers": {"Host": "a"}}, "headers Host: says which host or hop"),
        ({"headers": {"cookie": "a"}}, "headers cookie: says which host or hop"),
        ({"headers": {"Metadata": "true"}}, "headers Metadata: says which"),
        ({"headers": {"X-Forwarded-For": "a"}}, "headers X-Forwarded-For: says which"),
        ({"headers": {"Proxy-Authorization": "a"}}, "headers Proxy-Authorization: says which"),
        ({"headers": {"Metadata-Flavor": "Google"}}, "headers Metadata-Flavor: says which"),
    ],
)  # fmt: skip
def test_what_may_not_be_put_is_told(more: dict[str, Any], fault: str) -> None:
    with pytest.raises(BadArg) as raised:
        provider_from("shop", GOOD | more, Reach())
    assert f"providers.shop.{fault}" in str(raised.value)
    assert "configuration file" in str(raised.value)


def test_an_issuer_is_looked_at_too() -> None:
    settings = {key: value for key, value in GOOD.items() if key != "token_url"}
    with pytest.raises(BadArg, match="issuer: found an address that is not public"):
        provider_from("shop", settings | {"issuer": "https://192.168.0.1"}, Reach())


def test_what_the_file_allows_may_be_put() -> None:
    reach = reach_of(["127.0.0.0/8"], ["proxy", "headers"])
    for more in (
        {"token_url": "http://127.0.0.1:1/t"},
        {"token_url": "http://localhost:1/t"},
        {"proxy": "http://p.example:3128"},
        {"headers": {"Host": "a", "Cookie": "b"}},
    ):
        assert provider_from("shop", GOOD | more, reach).reach == reach
    with pytest.raises(BadArg, match="found http://, which"):
        provider_from("shop", GOOD | {"token_url": "http://x.example/t", "plain_http": True}, reach)


def test_the_settings_are_those_of_the_file(tmp_path: Any) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[tokens]\nput_networks = ["10.0.0.0/8", "::1"]\nput_allowed = ["proxy"]\n')
    found = load(str(file), {}, {}).tokens.reach
    assert found == reach_of(["10.0.0.0/8", "::1"], ["proxy"])
    assert Tokens().reach == Reach()
    for wrong in (
        'put_networks = ["10.0.0.0/99"]',
        'put_networks = ["x"]',
        'put_allowed = ["all"]',
    ):
        file.write_text(f"[tokens]\n{wrong}\n")
        with pytest.raises(ConfigError, match=r"tokens\.put_.* allowed: "):
            load(str(file), {}, {})


def test_the_hosts_are_told_without_what_is_secret() -> None:
    document = (
        b'{"token_url": "https://u:s3cret@a.example:8443/s3cret?s3cret", "preset": "google",'
        b' "issuer": "https://[", "proxy": 7, "revocation_url": ""}'
    )
    assert hosts_of(document) == [
        "token_url https://a.example:8443",
        "issuer an address that is not shown",
        "preset google",
    ]
    assert hosts_of(b"[") == hosts_of(b"[]") == []
