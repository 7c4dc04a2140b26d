"""Settings of a provider that is put: read as the file's, without a look at the node's own."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tidewarden.config.egress import Reach
from tidewarden.config.provider import Provider
from tidewarden.config.stored_provider import (
    FAULTS_MAX,
    SECRETS,
    SETTINGS,
    provider_from,
    settings_of,
    shown,
)
from tidewarden.errors import BadArg
from tidewarden.tokens.limits.node_limits import HostRateLimits

GOOD: dict[str, Any] = {"token_url": "https://x/token", "client_id": "c", "client_secret": "s3cret"}


def test_settings_are_read_as_in_the_file() -> None:
    settings = GOOD | {
        "preset": "google",
        "margin_s": 7,
        "extras": ["id"],
        "parameters": {"audience": "a"},
        "next_secret": "n3xt",
    }
    found = provider_from("shop", settings_of(json.dumps(settings).encode()), Reach())
    assert (found.name, found.token_url, found.margin_s) == ("shop", "https://x/token", 7.0)
    assert (found.client_secret.reveal(), found.next_secret.reveal()) == ("s3cret", "n3xt")
    assert (found.extras, found.parameters["audience"]) == (("id",), "a")


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({"client_id": 7}, "providers.shop.client_id: found 7; allowed: the identifier"),
        ({"client_id": None}, "providers.shop.client_id: found None; allowed: the identifier"),
        ({"client_idd": "x"}, "providers.shop.client_idd: unknown setting; did you mean 'client_id'"),
        ({"extras": ["x"] * 51}, "providers.shop.extras: found 51 entries; allowed: at most 50"),
        ({"token_url": "https://{a}." + "x." * 130 + "y", "account_parameters": {"a": "b"}}, "found a host of"),
        ({"margin_s": -1}, "providers.shop.margin_s: found -1; allowed: a number from 0"),
        ({"token_url": "http://x/t"}, "providers.shop.token_url: "),
        ({"issuer": "https://x"}, "providers.shop: found both; allowed: one of token_url and issuer"),
        ({"preset": "nobody"}, "providers.shop.preset: found 'nobody';"),
        ({"auth": "private_key_jwt"}, "found 'private_key_jwt'; allowed only with jwt_key_file"),
        ({"proxy": "environment"}, "providers.shop.proxy: found 'environment', a node's own"),
        ({"client_secret": "${SHOP}"}, "providers.shop.client_secret: found a variable, which"),
        ({"headers": {"x": "$SHOP"}}, "providers.shop.headers: found a variable, which nothing"),
        ({"client_secret_file": "/x"}, "client_secret_file: names what lies on a node, which a"),
        ({"client_secret_env": "HOME"}, "allowed: client_secret itself"),
        ({"tls_ca": "/x"}, "allowed: the configuration files of the nodes"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_by_its_name(more: dict[str, Any], fault: str) -> None:
    with pytest.raises(BadArg) as raised:
        provider_from("shop", GOOD | more, Reach())
    assert fault in str(raised.value)
    assert "s3cret" not in str(raised.value)
    assert not str(raised.value).startswith("put:")


def test_of_many_faults_the_first_are_told() -> None:
    """What else was meant is looked for within the turn of one request."""
    with pytest.raises(BadArg) as caught:
        provider_from("shop", GOOD | {f"unknown{n}": n for n in range(1000)}, Reach())
    assert str(caught.value).count("unknown setting") == FAULTS_MAX


def test_no_setting_has_a_file_of_the_node_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the node")
    for key in ("client_secret_file", "next_secret_file", "subject_token_file", "jwt_key_file"):
        settings = {**GOOD, "grant": "token_exchange", key: str(secret)}
        if key == "client_secret_file":
            del settings["client_secret"]
        with pytest.raises(BadArg, match=f"{key}: names what lies on a node"):
            provider_from("shop", settings, Reach())
    paths = {item.name for item in dataclasses.fields(Provider) if item.metadata.get("path")}
    assert len(paths) >= 5
    assert not paths & set(SETTINGS)
    assert not [key for key in SETTINGS if key.endswith(("_file", "_env"))]


@pytest.mark.parametrize("name", ["", "a b", "é", "x" * 64, "-a"])
def test_names(name: str) -> None:
    with pytest.raises(BadArg, match="found the name"):
        provider_from(name, dict(GOOD), Reach())


@pytest.mark.parametrize("document", [b"", b"[]", b'"x"', b"{", b"\xff", b"[" * 10_000])
def test_what_is_no_object(document: bytes) -> None:
    with pytest.raises(BadArg, match="The settings of a provider are a JSON object"):
        settings_of(document)


@pytest.mark.parametrize(("of_client", "own"), [(0.0, 0.001), (5.0, 0.001), (0.0005, 0.0005)])
def test_a_rate_of_a_host_bounds_the_provider_that_has_it_and_nobody_else(
    of_client: float, own: float
) -> None:
    rates = {"client_rate": of_client, "host_rate": 0.001}
    put = provider_from("mine", GOOD | rates, Reach())
    assert put.client_rate == own
    limits = HostRateLimits()
    limits.change([put])
    assert not limits.rated(Provider(name="shop", token_url=GOOD["token_url"]))


def test_secrets_are_not_shown() -> None:
    secret = {
        "client_secret": "s1",
        "next_secret": "s2",
        "subject_token": "s3",
        "proxy": "http://u:s4@p:1",
        "parameters": {"a": "s5"},
        "headers": {"b": "s6"},
    }
    assert set(secret) == SECRETS
    assert shown({"client_id": "c", **secret}) == {
        "client_id": "c",
        **dict.fromkeys(("client_secret", "next_secret", "subject_token", "proxy"), "set"),
        "parameters": {"a": "set"},
        "headers": {"b": "set"},
    }
