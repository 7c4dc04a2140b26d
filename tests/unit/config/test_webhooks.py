"""Webhooks and companions of the configuration."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tidewarden.config.load import load
from tidewarden.errors import ConfigError

SECRET = "whsec_" + base64.b64encode(b"s" * 32).decode()
PROVIDER = '[providers.p]\ntoken_url = "http://127.0.0.1/t"\nclient_id = "c"\nauth = "none"\n'


def written(folder: Path, text: str) -> str:
    (folder / "config.toml").write_text(text)
    return str(folder / "config.toml")


def test_a_webhook_by_http_to_another_machine_is_refused_unless_it_is_meant(tmp_path: Path) -> None:
    text = f'[webhooks.ops]\nurl = "http://ops.example/h?key=s3cret"\nsecret = "{SECRET}"\n'
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, text), {}, {})
    (problem,) = caught.value.problems
    assert "webhooks.ops.url: found http:// to another machine" in problem
    assert "s3cret" not in problem
    assert load(written(tmp_path, text + "plain_http = true\n"), {}, {}).webhooks["ops"].plain_http


def test_what_they_become(tmp_path: Path) -> None:
    (tmp_path / "two").write_text(f"{SECRET}\n{SECRET}\n")
    text = (
        f'[webhooks.ops]\nurl = "https://x/y?key=s3cret"\nsecret_file = "{tmp_path}/two"\nevents ='
        ' ["account.*"]\n[webhooks.log]\nurl = "http://127.0.0.1:9/"\nsecret_env ='
        f' "HOOK"\n{PROVIDER}[companions.contacts]\nqueue = "contacts.sync"\nproviders ='
        ' ["p"]\ninterval_s = 3600\n'
    )
    config = load(written(tmp_path, text), {"HOOK": SECRET}, {})
    ops = config.webhooks["ops"]
    assert (ops.name, ops.events, len(ops.secrets), ops.timeout_s) == ("ops", ("account.*",), 2, 15)
    assert config.webhooks["log"].secrets[0].reveal() == SECRET
    assert "s3cret" not in repr(config)
    assert SECRET not in repr(config)
    contacts = config.companions["contacts"]
    assert (contacts.name, contacts.queue, contacts.interval_s, contacts.providers) == (
        "contacts", "contacts.sync", 3600, ("p",)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            '[webhooks.ops]\nurl = "https://x/"\n',
            "webhooks.ops: found none of them; allowed: exactly one of secret, ",
        ),
        (
            '[webhooks.ops]\nurl = "https://x/"\nsecret = "s3cret"\n',
            "webhooks.ops.secret: found a value that is not shown",
        ),
        (
            '[webhooks.ops]\nurl = "https://x/"\nsecret_env = "NONE"\n',
            "'NONE', which the environment does not have",
        ),
        (
            '[webhooks.ops]\nurl = "https://x/"\nsecret_file = "/none"\n',
            "'/none', which cannot be read",
        ),
        (
            '[webhooks.ops]\nurl = "https://x/"\nsecret_file = "~nobody-at-all/x"\n',
            "which cannot be read",
        ),
        (
            '[webhooks.ops]\nurl = "https://x/"\nsecret_env = [1]\n',
            "webhooks.ops.secret_env: found '', which the environment",
        ),
        (f'[webhooks.ops]\nsecret = "{SECRET}"\n', "webhooks.ops.url: missing"),
        (
            f'[webhooks.ops]\nurl = "ftp://s3cret@x/"\nsecret = "{SECRET}"\n',
            "webhooks.ops.url: found an address that is",
        ),
        (f'[webhooks."a b"]\nurl = "https://x/"\nsecret = "{SECRET}"\n', "found the name 'a b'"),
        (
            f'[webhooks.ops]\nurl = "https://x/"\nsecret = "{SECRET}"\nevents = ["Dead!"]\n',
            "kinds like 'account.dead'",
        ),
        (
            f'[webhooks.ops]\nurl = "https://x/"\nsecret = "{SECRET}"\nevent = []\n',
            "did you mean 'events'",
        ),
        (
            f'[webhooks.ops]\nurl = "https://x/"\nsecret = "{SECRET}"\nevents = ["acount.*"]\n',
            (
                "config.toml:4: webhooks.ops.events: found 'acount.*', which no event is; did you"
                " mean 'account."
            ),
        ),
        (
            f'{PROVIDER}[companions.c]\nqueue = "q"\npayload = "{{acount}}"\n',
            "payload: found {acount}; allowed: {account}, ",
        ),
        ("webhooks = 1\n", "webhooks: allowed are sections [webhooks.NAME]"),
        ('[companions.c]\nqueue = "_locks"\n', "companions.c.queue"),
        (
            '[companions.c]\nqueue = "q"\nproviders = ["none"]\n',
            "found 'none'; allowed: providers that are configured",
        ),
        ('[companions.c]\nqueue = "q"\ninterval_s = 0\n', "companions.c.interval_s"),
    ],
)
def test_what_is_wrong_is_told_without_secrets(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, text), {}, {})
    assert words in str(caught.value)
    assert "s3cret" not in str(caught.value)
