"""Where nodes are: what may be said, and what a message of ours never repeats."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidewarden.client.address import Address, addresses, parse
from tidewarden.errors import BadArg


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://host", Address("host", 7420)),
        ("redis://host:7430/0", Address("host", 7430)),
        ("redis://me:s%20%40:x@host:1", Address("host", 1, "me", "s @:x")),
        ("redis://:only@host", Address("host", 7420, "", "only")),
        ("rediss://[::1]:5?ca=/etc/ca.pem", Address("::1", 5, tls=True, ca_file="/etc/ca.pem")),
    ],
)
def test_what_may_be_said(url: str, expected: Address) -> None:
    assert parse(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "host:7420",
        "http://host",
        "redis://",
        "redis://host:no",
        "redis://host/3",
        "redis://h:99999",
    ],
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(BadArg, match="is no node's address"):
        parse(url)


def test_secrets_are_not_shown() -> None:
    address = parse("redis://me:secret@host")
    assert "secret" not in f"{address} {address!r}"
    assert str(parse("rediss://[::1]")) == "rediss://[::1]:7420"
    for url in (
        "redis://me:secret@host:no",
        "redis://me:secret/x@host",
        "redis://me:secret#@host",
        "redis://me:[secret]@h",
    ):
        with pytest.raises(BadArg) as caught:
            parse(url)
        assert "secret@" not in str(caught.value)
        assert "'secret" not in str(caught.value)


def test_without_a_word_it_is_the_local_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert addresses(None, {}) == [Address("127.0.0.1", 7420)]
    data = tmp_path / "tidewarden-data"
    for name, port in (("n0", 9420), ("n1", 9430)):
        (data / name).mkdir(parents=True)
        (data / name / "node.toml").write_text(f"[node]\nbase_port = {port}\n")
    (data / "n2").mkdir()
    (data / "n2" / "node.toml").write_text("damaged [")
    (data / "secrets").mkdir()
    (data / "secrets" / "admin.secret").write_text("s@ret\n")
    assert addresses(None, {}) == [
        Address("127.0.0.1", port, "admin", "s@ret") for port in (9420, 9430)
    ]


def test_a_local_cluster_on_ipv6_is_found_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tidewarden-data" / "n0").mkdir(parents=True)
    (tmp_path / "tidewarden-data" / "n0" / "node.toml").write_text(
        '[node]\nhost = "::1"\nbase_port = 9420\n'
    )
    assert addresses(None, {}) == [Address("::1", 9420)]


def test_several_nodes_and_the_environment() -> None:
    environ = {"TIDEWARDEN_URL": "redis://a, redis://b:5"}
    assert [address.host for address in addresses(None, environ)] == ["a", "b"]
    assert [address.host for address in addresses("redis://c", environ)] == ["c"]
    assert [address.host for address in addresses(["redis://c", "redis://d"], environ)] == [
        "c",
        "d",
    ]
    with pytest.raises(BadArg, match="no node is given"):
        addresses([], {})


def test_encryption_is_said_by_the_scheme() -> None:
    assert parse("redis://host").context() is None
    context = parse("rediss://host").context()
    assert context is not None
    assert context.check_hostname
