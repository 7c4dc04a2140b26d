"""
``[providers.NAME]``: presets beneath, secrets from where they lie, contradictions named with their
lines.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from support.providers.certificate import make

from tidewarden.config.load import load
from tidewarden.config.placeholders import PATTERN_ALLOWED
from tidewarden.config.presets import PRESETS
from tidewarden.config.provider import Provider
from tidewarden.errors import ConfigError

Write = Callable[[str], str]
GOOD = (
    '[providers.p]\ntoken_url = "https://a.example/token"\nclient_id = "c"\nclient_secret = "s"\n'
)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(text: str) -> str:
        path = tmp_path / "config.toml"
        path.write_text(text)
        return str(path)

    return written


def provider(path: str) -> Provider:
    return load(path, {}, {}).providers["p"]


def problems(path: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(path, {}, {})
    return list(caught.value.problems)


def test_every_setting_is_read(write: Write) -> None:
    text = (
        GOOD.replace("[providers.p]\n", '[providers.p]\nbody = "json"\nkills_access_token = true\n')
        + 'next_secret = "s2"\nmargin_share = 0.2\nparameters = { resource = "https://r" }\n'
        '[providers.p.errors]\n"400 invalid_request" = "invalid_grant"\n500 = "rejected"\n'
        '[providers.p.paths]\naccess_token = "data.token"\n'
    )
    found = provider(write(text))
    assert (found.body, found.kills_access_token, found.margin_share) == ("json", True, 0.2)
    assert found.errors == {"400 invalid_request": "invalid_grant", "500": "rejected"}
    assert found.paths == {"access_token": "data.token"}
    assert [secret.reveal() for secret in found.secrets] == ["s", "s2"]
    assert "s2" not in repr(found)
    assert "https://r" not in repr(found)  # A parameter may be a secret of somebody's.
    flags = {"providers.p.kills_access_token": "False", "providers.p.errors": "500=unknown"}
    flagged = load(write(text), {}, flags).providers["p"]
    assert (flagged.kills_access_token, flagged.errors) == (False, {"500": "unknown"})


def test_placeholders_are_read_and_looked_at(write: Write) -> None:
    text = (
        GOOD.replace("https://a.example/token", "https://{shop}.a.example/token")
        + 'extras = ["api", "org.id"]\n'
    )
    found = provider(write(text + "[providers.p.account_parameters]\nshop = '[a-z]+'\n"))
    assert (found.account_parameters, found.extras) == ({"shop": "[a-z]+"}, ("api", "org.id"))
    assert problems(
        write(text + "[providers.p.account_parameters]\nshop = '.+'\ntenant = 'x'\n")
    ) == [
        f"{path_of(write)}:7: providers.p.account_parameters shop: found '.+', which may let"
        " through / @ : or the like; allowed in an address: " + PATTERN_ALLOWED,
        (
            f"{path_of(write)}:8: providers.p.account_parameters tenant: found 'tenant', which no"
            " address, client_id, parameter, header or assertion holds"
        ),
    ]
    (missing,) = problems(write(text))
    assert (
        "token_url: found {shop}; allowed: a placeholder with a pattern in account_parameters"
        in missing
    )
    plain = text.replace("https:", "http:") + "[providers.p.account_parameters]\nshop = '[a-z]+'\n"
    assert "found http:// to another machine" in "".join(problems(write(plain)))
    assert "extras: found" in "".join(problems(write(GOOD + 'extras = ["a..b"]\n')))
    for name in ("refresh_token", "access_token", "id_token"):
        assert f"extras: found {name!r}, which is a secret" in "".join(
            problems(write(GOOD + f'extras = ["{name}"]\n'))
        )
    elsewhere = 'extras = ["user.token"]\npaths = { access_token = "user.token" }\n'
    assert "extras: found 'user.token', which is a secret" in "".join(
        problems(write(GOOD + elsewhere))
    )


def test_a_secret_is_the_providers_or_each_accounts(write: Write) -> None:
    bare = GOOD.replace('client_secret = "s"\n', "account_secret = true\n")
    found = provider(write(bare))
    assert (found.account_secret, bool(found.client_secret)) == (True, False)
    for key in ("client_secret", "next_secret"):
        (both,) = problems(write(f'{bare}{key} = "hush"\n'))
        assert f"{key}: not allowed with account_secret: each account brings its client's" in both
    (none,) = problems(write(bare + 'auth = "none"\n'))
    assert "account_secret: not allowed with auth = 'none', which sends no secret" in none


def path_of(write: Write) -> str:
    return write("")


def test_a_grants_end_is_told_in_one_way_and_a_token_is_used_before_it_ends_unused(
    write: Write,
) -> None:
    found = provider(write(GOOD + "consent_life_s = 1000\n"))
    assert (found.consent_life_s, found.keep_alive_s) == (1000, 500)
    assert provider(write(GOOD + "consent_life_s = 1000\nkeep_alive_s = 700\n")).keep_alive_s == 700
    assert provider(write(GOOD + "consent_fixed_s = 1000\n")).keep_alive_s == 0
    both = provider(write(GOOD + "consent_life_s = 1000\nconsent_fixed_s = 9000\n"))
    assert (both.consent_life_s, both.consent_fixed_s, both.keep_alive_s) == (1000, 9000, 500)
    (late,) = problems(write(GOOD + "consent_life_s = 1000\nkeep_alive_s = 1000\n"))
    assert "keep_alive_s: found 1000; allowed: less than consent_life_s" in late


def test_a_bad_file_tells_every_problem_with_its_line(write: Write) -> None:
    path = write(
        GOOD
        + 'issuer = "https://a.example"\n'  # 5
        + 'auth = "private_key_jwt"\n'
        + "rotation = 'no'\n"
        + "refreshers = -1\n"
        + "margin_s = 60\n"
        + "not_before_s = 30\n"  # 10
        + "connect_timeout_s = 31\n"
        + 'kills_access_token = "yes"\n'
        + "[providers.p.parameters]\n"
        + 'grant_type = "x"\n'
        + "[providers.p.errors]\n"  # 15
        + '"400 invalid_request" = "dead"\n'
        + '"" = "unknown"\n'
        + "[providers.p.paths]\n"
        + 'token = "a..b"\n'
        + "[providers.p.headers]\n"  # 20
        + '"X:Y" = "a"\n'
        + "[providers.q]\n"
    )
    found = problems(path)

    def expect(line: int, text: str) -> None:
        assert [one for one in found if one.startswith(f"{path}:{line}: ") and text in one], (
            line,
            text,
            found,
        )

    expect(4, "client_secret: not allowed with auth = 'private_key_jwt', which sends no secret")
    expect(6, "allowed only with jwt_key_file")
    expect(7, "one of 'none', 'rolling', 'single_use'")
    expect(8, "a whole number from 0 to 1,000")
    expect(9, "allowed with not_before_s: at most 30")
    expect(11, "allowed: at most timeout_s")
    expect(12, "allowed: true or false")
    expect(14, "the request says that by itself")
    expect(16, "found the class 'dead'; allowed is one of invalid_grant")
    expect(17, "'STATUS', 'CODE' or 'STATUS CODE'")
    expect(19, "unknown member 'token'")
    expect(19, "names with dots between them")
    expect(21, "found characters that no header has")
    expect(1, "providers.p: found both; allowed: one of token_url and issuer")
    expect(22, "providers.q: found neither; allowed: one of token_url and issuer")
    expect(22, "providers.q.client_id: missing; allowed: the identifier it gave our client")


@pytest.mark.parametrize(
    "line", ["parameters = { key = 12345678 }", 'headers = ["hush"]', 'headers = "K: hush"']
)
def test_what_may_be_a_secret_is_in_no_problem(write: Write, line: str) -> None:
    [found] = problems(write(GOOD + line + "\n"))
    assert found.endswith("found a value that is not shown; allowed: names with a text each")


def test_a_client_too_long_for_a_queue(write: Write) -> None:
    [found] = problems(write(GOOD.replace('"c"', f'"{"c" * 192}"')))
    assert "config.toml:3: providers.p.client_id: is too long by 2 for the name of a queue" in found
    assert provider(write(GOOD.replace('"c"', f'"{"c" * 190}"'))).name == "p"


def test_a_preset_lies_beneath_what_is_written(write: Write) -> None:
    text = '[providers.p]\npreset = "github"\nclient_id = "c"\nclient_secret = "s"\n'
    found = provider(write(text))
    assert found.token_url == "https://github.com/login/oauth/access_token"
    assert (found.rotation, found.kills_access_token, found.unconfirmed) == ("single_use", True, ())
    more = provider(write(text + 'rotation = "rolling"\nerrors = { odd = "unknown" }\n'))
    assert more.rotation == "rolling"
    assert more.errors["odd"] == "unknown"
    assert more.errors["bad_refresh_token"] == "invalid_grant"
    other = provider(write(text + 'issuer = "https://github.example"\n'))
    assert (other.token_url, other.issuer) == ("", "https://github.example")
    assert "did you mean 'github'?" in "\n".join(
        problems(write(text.replace('"github"', '"git-hub"')))
    )
    assert "known are adobe-sign" in "\n".join(problems(write(text.replace('"github"', "5"))))


def test_an_address_that_is_written_needs_none_of_its_presets_parameters(write: Write) -> None:
    text = '[providers.p]\npreset = "shopify"\nclient_id = "c"\nclient_secret = "s"\n'
    found = provider(write(text))
    assert (found.token_url, list(found.account_parameters)) == (
        "https://{shop}.myshopify.com/admin/oauth/access_token",
        ["shop"],
    )
    own = provider(
        write(text + 'token_url = "https://acme.myshopify.com/admin/oauth/access_token"\n')
    )
    assert own.account_parameters == {}
    both = provider(write(text + 'token_url = "https://{shop}.shops.example/token"\n'))
    assert list(both.account_parameters) == ["shop"]


def test_a_consents_life_that_is_written_stands_beside_the_end_of_its_preset(write: Write) -> None:
    text = '[providers.p]\npreset = "spotify"\nclient_id = "c"\nclient_secret = "s"\n'
    assert provider(write(text)).consent_fixed_s == 15_552_000
    found = provider(write(text + "consent_life_s = 864000\n"))
    assert (found.consent_life_s, found.consent_fixed_s) == (864_000, 15_552_000)


def test_what_is_not_confirmed_is_said_until_it_is_written(write: Write) -> None:
    text = '[providers.p]\npreset = "strava"\nclient_id = "c"\nclient_secret = "s"\n'
    assert provider(write(text)).unconfirmed == ("token_url", "auth", "rotation")
    assert provider(write(text + 'rotation = "single_use"\n')).unconfirmed == ("token_url", "auth")


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_can_be_used_and_names_its_source(
    write: Write, name: str, tmp_path: Path
) -> None:
    preset = PRESETS[name]
    proof = (
        'client_secret = "s"'
        if preset.settings.get("grant") != "jwt_bearer"
        else f'jwt_key_file = "{make(tmp_path)[1]}"'
    )
    text = f'[providers.p]\npreset = "{name}"\nclient_id = "c"\n{proof}\n'
    if "token_url" not in preset.settings:
        text += 'token_url = "https://tenant.example/token"\n'
    found = provider(write(text))
    assert set(preset.unconfirmed) <= set(preset.settings)
    assert found.token_url.startswith("https://")
    assert preset.source.startswith("https://")
    assert tomllib.loads(f"day = {preset.checked}")["day"].year >= 2026


def test_keys_and_certificates_are_looked_at(write: Write, tmp_path: Path) -> None:
    cert, key = make(tmp_path, "mine")
    base = GOOD.replace('client_secret = "s"\n', "")
    signed = base + f'auth = "private_key_jwt"\njwt_key_file = "{key}"\n'
    assert provider(write(signed)).jwt_key_file == key
    assert "a key for ES256, not for RS256" in "\n".join(
        problems(write(signed + 'jwt_algorithm = "RS256"\n'))
    )
    assert "no private key in PEM" in "\n".join(problems(write(signed.replace(key, cert))))
    tls = base + f'auth = "tls"\ntls_cert = "{cert}"\ntls_key = "{key}"\ntls_ca = "{cert}"\n'
    assert provider(write(tls)).tls_ca == cert
    assert "both or neither" in "\n".join(problems(write(tls.replace(f'tls_key = "{key}"\n', ""))))
    assert "two PEM files" in "\n".join(
        problems(write(tls.replace(f'tls_key = "{key}"', f'tls_key = "{cert}"')))
    )
    assert "no PEM certificate" in "\n".join(
        problems(write(tls.replace(f'tls_ca = "{cert}"', f'tls_ca = "{key}"')))
    )
    assert "allowed only with tls_cert" in "\n".join(problems(write(base + 'auth = "tls"\n')))


def test_the_certificate_of_a_signing_key_is_looked_at(write: Write, tmp_path: Path) -> None:
    cert, key = make(tmp_path)
    _, other = make(tmp_path, "other")
    text = GOOD.replace(
        'client_secret = "s"\n', f'auth = "private_key_jwt"\njwt_key_file = "{key}"\n'
    )
    named = text + f'jwt_cert_file = "{cert}"\njwt_thumbprint = "x5t"\n'
    assert provider(write(named)).jwt_thumbprint == "x5t"
    for file, fault in (
        (other, "no certificate in PEM"),
        (str(tmp_path / "none.pem"), "No such file or directory"),
    ):
        assert problems(write(text + f'jwt_cert_file = "{file}"\n')) == [
            f"{tmp_path}/config.toml:6: providers.p.jwt_cert_file: found '{file}': {fault}; "
            "allowed: the certificate in PEM of the key in jwt_key_file"
        ]
    assert "a certificate of another key" in problems(write(named.replace(key, other)))[0]


def test_a_proxy_is_set_or_the_environments_and_its_password_is_not_shown(write: Write) -> None:
    there = "http://u:hunter2@proxy.example:3128"
    found = provider(write(GOOD + f'proxy = "{there}"\n'))
    assert found.proxy == there
    assert "hunter2" not in repr(found)
    path = write(GOOD + 'proxy = "environment"\n')
    assert provider(path).proxy == ""
    environ = {"HTTPS_PROXY": there, "NO_PROXY": "b.example"}
    assert load(path, environ, {}).providers["p"].proxy == there
    assert load(path, environ | {"NO_PROXY": "a.example"}, {}).providers["p"].proxy == ""
    with pytest.raises(ConfigError) as caught:
        load(path, {"https_proxy": "socks5://u:hunter2@p:1"}, {})
    assert caught.value.problems == [
        f"{path}:5: providers.p.proxy: the environment names no such proxy; allowed:"
        " http://HOST:PORT, USER:PASSWORD@ before the host where it wants them, or 'environment'"
    ]
    for bad in ("https://u:hunter2@p:1", 5):
        told = problems(write(GOOD + f"proxy = {bad!r}\n"))
        assert len(told) == 1
        assert "providers.p.proxy" in told[0]
        assert "hunter2" not in told[0]


def test_a_next_secret_comes_from_one_place(write: Write, tmp_path: Path) -> None:
    (tmp_path / "next").write_text("from file\n")
    found = provider(write(f'{GOOD}next_secret_file = "{tmp_path / "next"}"\n'))
    assert [secret.reveal() for secret in found.secrets] == ["s", "from file"]
    text = "\n".join(problems(write(f'{GOOD}next_secret = "a"\nnext_secret_env = "B"\n')))
    assert "found next_secret and next_secret_env; allowed: exactly one of next_secret, " in text


def test_a_node_may_refresh_alone_only_where_that_does_no_harm(write: Write) -> None:
    alone = GOOD.replace("[providers.p]\n", '[providers.p]\norphan = "refresh"\n')
    assert provider(write(alone + 'rotation = "none"\n')).orphan == "refresh"
    for more, found in (
        ("", "rotation = 'single_use'"),
        ('rotation = "rolling"\n', "rotation = 'rolling'"),
    ):
        (problem,) = problems(write(alone + more))
        assert (
            f"providers.p.orphan: found 'refresh' with {found}; allowed with rotation = 'none'"
            in problem
        )
    (problem,) = problems(write(alone + 'rotation = "none"\nkills_access_token = true\n'))
    assert "with kills_access_token = true; allowed" in problem


def test_a_revocation_needs_a_place(write: Write) -> None:
    revoking = GOOD.replace("[providers.p]\n", '[providers.p]\non_delete = "revoke"\n')
    (problem,) = problems(write(revoking))
    assert (
        "providers.p.on_delete: found 'revoke'; allowed only with revocation_url, or an issuer"
        in problem
    )
    assert (
        provider(write(revoking + 'revocation_url = "https://a.example/r"\n')).on_delete == "revoke"
    )
    (problem,) = problems(write(revoking + 'revocation_url = "ftp://a.example/r"\n'))
    assert "providers.p.revocation_url: found 'ftp://a.example/r'" in problem


@pytest.mark.parametrize("key", ["token_url", "issuer", "revocation_url"])
def test_http_to_another_machine_is_refused_unless_it_is_meant(write: Write, key: str) -> None:
    base = (
        GOOD
        if key == "revocation_url"
        else GOOD.replace('token_url = "https://a.example/token"\n', "")
    )
    plain = f'{base}{key} = "http://as.example/x"\n'
    (problem,) = problems(write(plain))
    assert f"providers.p.{key}: found http:// to another machine" in problem
    assert "allowed: https://, or plain_http = true" in problem
    assert provider(write(plain + "plain_http = true\n")).plain_http
    for host in ("127.0.0.1:9", "localhost", "[::1]:9"):
        assert not provider(write(plain.replace("as.example", host))).plain_http


@pytest.mark.parametrize(
    "url", ["http://u:hush/x@h/", "httpx://u:hush@h/", "http://u:hush@h/", "http://u:hush#@h"]
)
def test_an_address_with_a_password_is_not_shown(write: Write, url: str) -> None:
    (problem,) = problems(write(GOOD.replace("https://a.example/token", url)))
    assert "providers.p.token_url: found " in problem
    assert "hush" not in problem


@pytest.fixture
def key(tmp_path: Path) -> str:
    return make(tmp_path)[1]


NO_REFRESH = GOOD + 'grant = "client_credentials"\n'


def test_a_grant_without_refresh_tokens_uses_nothing_up(write: Write) -> None:
    found = provider(
        write(
            NO_REFRESH
            + 'scope = "mail"\norphan = "refresh"\nparameters = { audience = "https://a" }\n'
        )
    )
    assert (found.grant, found.rotation, found.scope, found.brings) == (
        "client_credentials",
        "none",
        "mail",
        "",
    )
    assert not found.renews
    assert provider(write(NO_REFRESH + 'rotation = "none"\n')).rotation == "none"
    assert provider(write(GOOD)).rotation == "single_use"


def test_a_presets_refresh_tokens_are_not_those_of_another_grant(write: Write) -> None:
    text = '[providers.p]\npreset = "github"\nclient_id = "c"\nclient_secret = "s"\n'
    assert provider(write(text)).kills_access_token
    found = provider(write(text + 'grant = "client_credentials"\n'))
    assert (found.rotation, found.kills_access_token) == ("none", False)
    assert found.token_url == "https://github.com/login/oauth/access_token"


@pytest.mark.parametrize(
    ("more", "line", "says"),
    [
        ('rotation = "rolling"', 6, "rotation: found 'rolling' with grant = 'client_credentials', which uses nothing up"),
        ("grace_s = 5.0", 6, "grace_s: not allowed with grant = 'client_credentials'"),
        ("consent_life_s = 5.0", 6, "consent_life_s: not allowed with grant = 'client_credentials', which has no refresh"),
        ("account_parameters = { account = 'x' }", 6, "account_parameters account: stands for the account's own name"),
        ('on_delete = "revoke"\nrevocation_url = "https://a.example/r"', 6, "on_delete: found 'revoke' with grant"),
        ('jwt_subject = "x"', 6, "jwt_subject: not allowed with grant = 'client_credentials'; allowed with grant = 'jwt_bearer'"),
        ('scope_in = "assertion"', 6, "scope_in: not allowed with"),
        ('subject_token = "hush"', 6, "subject_token: not allowed with grant = 'client_credentials'; allowed with"),
        ('subject_token_type = "jwt"', 6, "subject_token_type: not allowed with"),
        ('parameters = { scope = "x" }', 6, "parameters scope: the request says that by itself"),
        ('auth = "assertion"', 6, "auth: found 'assertion'; allowed only with grant = 'jwt_bearer'"),
        ('auth = "none"', 6, "auth: found 'none' with grant = 'client_credentials', by which the client asks for itself"),
    ],
)  # fmt: skip
def test_what_does_not_go_with_client_credentials_is_named(
    write: Write, more: str, line: int, says: str
) -> None:
    found = problems(write(f"{NO_REFRESH}{more}\n"))
    assert "hush" not in "".join(found)
    assert any(f"config.toml:{line}: providers.p.{says}" in one for one in found), found


def test_a_scope_is_not_asked_for_by_a_refresh_token(write: Write) -> None:
    (found,) = problems(write(GOOD + 'scope = "mail"\n'))
    assert (
        "providers.p.scope: not allowed with grant = 'refresh_token', which is for what was"
        " consented to" in found
    )


def test_an_assertion_needs_a_key_and_says_its_own_claims_itself(write: Write, key: str) -> None:
    (found,) = problems(write(GOOD + 'grant = "jwt_bearer"\n'))
    assert (
        "config.toml:5: providers.p.grant: found 'jwt_bearer'; allowed only with jwt_key_file"
        in found
    )
    whole = (
        GOOD.replace('client_secret = "s"\n', "")
        + f'grant = "jwt_bearer"\njwt_key_file = "{key}"\nauth = "assertion"\n'
    )
    assert provider(write(whole)).jwt_subject == "{account}"
    bad = (
        'jwt_subject = "{acount}"\nscope_in = "assertion"\njwt_claims = { iss = "x", scope = "y", z'
        ' = "{tenant}{account}" }\n'
    )
    found = problems(write(whole + bad))
    assert len(found) == 4
    for says in (
        "jwt_subject: found {acount}",
        "jwt_claims iss: the assertion says",
        "jwt_claims scope: ",
        "jwt_claims z: found {tenant}; allowed: a placeholder",
    ):
        assert any(says in one for one in found), (says, found)
    (found,) = problems(write(whole + 'client_secret = "s"\n'))
    assert "not allowed with auth = 'assertion', which sends no secret" in found


def test_a_subject_token_is_the_sections_or_each_accounts(write: Write, tmp_path: Path) -> None:
    text = GOOD + 'grant = "token_exchange"\n'
    assert provider(write(text)).brings == "subject_token"
    assert provider(write(text + 'subject_token = "hush"\n')).subject_token.reveal() == "hush"
    (tmp_path / "subject").write_text("hush\n")
    in_file = f'subject_token_file = "{tmp_path}/subject"\n'
    assert provider(write(text + in_file)).brings == ""
    env = 'subject_token_env = "SUBJECT"\n'
    assert (
        load(write(text + env), {"SUBJECT": "hush"}, {}).providers["p"].subject_token.reveal()
        == "hush"
    )
    (found,) = problems(write(text + env))
    assert (
        "providers.p.subject_token_env: found 'SUBJECT', which the environment does not have"
        in found
    )
    (found,) = problems(write(text + in_file + 'subject_token = "hush"\n'))
    assert "allowed: at most one of subject_token, subject_token_env, subject_token_file" in found
    (tmp_path / "subject").write_text("")
    (found,) = problems(write(text + in_file))
    assert "providers.p.subject_token_file" in found
    assert "which is empty" in found
    (found,) = problems(write(text + 'subject_token_type = "Id Token"\n'))
    assert "subject_token_type: found neither a name nor a URI" in found


def test_how_people_consent_is_read(write: Write) -> None:
    text = (
        GOOD + 'authorization_url = "https://a.example/authorize?x=1"\nconsent_scope = "a b"\n'
        'par_url = "https://a.example/par"\nconsent_issuer = "https://a.example"\npkce = false\n'
        'narrower_scope = "accept"\nauthorization_parameters = { prompt = "consent" }\n'
    )
    found = provider(write(text))
    assert found.authorization_url == "https://a.example/authorize?x=1"
    assert found.authorization_parameters == {"prompt": "consent"}
    assert (found.consent_scope, found.narrower_scope, found.pkce) == ("a b", "accept", False)
    assert (found.par_url, found.consent_issuer) == ("https://a.example/par", "https://a.example")


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ('authorization_url = "http://a.example/x"', "authorization_url: found http:// to another"),
        ('authorization_url = "https://a.example/#x"', "authorization_url: found a user, a pass"),
        (
            'authorization_url = "https://a.example/?x=1&code_challenge=y"',
            "authorization_url: found 'code_challenge' in its query, which the request says",
        ),
        ('authorization_url = "https://a.example/?a;Redirect%5FUri=y"', "'Redirect_Uri' in its"),
        ('authorization_parameters = { State = "x" }', "State: the request says that by itself"),
        ('par_url = "ftp://a.example"', "par_url: found 'ftp://a.example'; allowed: an address"),
        ('authorization_parameters = { state = "x" }', "state: the request says that by itself"),
        ('authorization_parameters = { response_mode = "x" }', "the request says that by itself"),
        (
            'authorization_url = "https://{shop}.a.example/x"',
            "found {shop}; allowed: a placeholder",
        ),
        ('consent_scope = "\u00e4"', "consent_scope: found characters that no scope has"),
        ('narrower_scope = "maybe"', "narrower_scope: found 'maybe'; allowed"),
    ],
)
def test_how_nobody_could_consent(write: Write, more: str, fault: str) -> None:
    (told,) = problems(write(f"{GOOD}{more}\n"))
    assert fault in told


def test_who_asks_for_no_consent_says_nothing_of_it(write: Write) -> None:
    text = GOOD + 'grant = "client_credentials"\nauthorization_url = "https://a.example/x"\n'
    (told,) = problems(write(text))
    assert "authorization_url: not allowed with grant = 'client_credentials'" in told
    text = GOOD.replace("token_url", "issuer").replace("/token", "")
    (told,) = problems(write(f'{text}consent_issuer = "https://b.example"\n'))
    assert "consent_issuer: found beside issuer, which says the same" in told


def test_a_presets_consent_is_void_at_another_address(write: Write) -> None:
    google = GOOD.replace('token_url = "https://a.example/token"\n', 'preset = "google"\n')
    found = provider(write(google))
    assert found.authorization_url == "https://accounts.google.com/o/oauth2/v2/auth"
    assert found.authorization_parameters["access_type"] == "offline"
    own = provider(write(GOOD + 'preset = "google"\n'))
    assert (own.authorization_url, own.consent_issuer) == ("", "")
    shop = 'preset = "shopify"\nclient_id = "c"\nclient_secret = "s"\n'
    found = provider(write(f"[providers.p]\n{shop}"))
    assert found.authorization_url == "https://{shop}.myshopify.com/admin/oauth/authorize"
    moved = provider(write(f'[providers.p]\n{shop}token_url = "https://a.example/token"\n'))
    assert (moved.authorization_url, moved.account_parameters) == ("", {})
