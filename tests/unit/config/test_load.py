"""Settings: defaults, what overrides what, and every problem in one error."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tidewarden.config.load import (
    NEXT_KEYS,
    SECRET_KEYS,
    SECTIONS,
    SUBJECT_KEYS,
    Config,
    Provider,
    User,
    hash_generated,
    is_loopback,
    keys,
    load,
)
from tidewarden.errors import ConfigError

ROOT = Path(__file__).parents[3]
GOOD_PROVIDER = '[providers.p]\ntoken_url = "https://a.example/token"\nclient_id = "c"\n'
Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a configuration; returns its path."""

    def writer(text: str) -> str:
        path = tmp_path / "c.toml"
        path.write_text(text, "utf-8")
        return str(path)

    return writer


def problems(
    path: str | None, environ: dict[str, str] | None = None, flags: dict[str, str] | None = None
) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(path, environ or {}, flags or {})
    return caught.value.problems


def only(
    path: str | None, environ: dict[str, str] | None = None, flags: dict[str, str] | None = None
) -> str:
    found = problems(path, environ, flags)
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize("value", ["30", "[30, 0]", "[3651]", '["7"]', "[true]", "[1.5]"])
def test_a_list_of_numbers_holds_whole_ones_within_their_bounds(write: Write, value: str) -> None:
    said = only(write(f"[tokens]\nconsent_notice_days = {value}\n"))
    assert said.endswith(
        f"tokens.consent_notice_days: found {value}; allowed: a list of whole numbers from 1 to"
        " 3,650".replace("true", "True").replace('"', "'")
    )


def test_a_list_of_numbers_is_written_with_commas_where_it_is_text() -> None:
    named = "TIDEWARDEN_TOKENS_CONSENT_NOTICE_DAYS"
    assert load(None, {named: "14, 3"}, {}).tokens.consent_notice_days == (14, 3)
    assert load(None, {named: ""}, {}).tokens.consent_notice_days == ()
    assert "found '14,x'; allowed: a list of whole numbers" in only(None, {named: "14,x"})


def test_defaults_need_no_file() -> None:
    assert load(None, {}, {}) == Config()
    assert Config().limits.request_bytes == 1_048_576 + 65_536


@pytest.mark.parametrize("host", ["h", "h:1,h:2", "[::1]:1,h", "u:p%40@h:1,h:2", ":p@h"])
def test_a_store_under_sentinel(host: str) -> None:
    url = f"rediss+sentinel://{host}/main?sentinel_password=x/@y"
    assert load(None, {}, {"store.url": url}).store.url == url


@pytest.mark.parametrize("url", ["redis://h/zero", "redis://h:1/0/1", "rediss://h/-1"])
def test_behind_a_stores_host_stands_a_database_or_nothing(url: str) -> None:
    assert "the number of a database" in only(None, {}, {"store.url": url})
    assert load(None, {}, {"store.url": "redis://:pw@h:1/15?client_name=x"})


def test_ports_follow_the_base_port() -> None:
    node = load(None, {}, {"node.base_port": "7430"}).node
    assert (node.resp_port, node.http_port, node.raft_port, node.store_port) == (
        7430,
        7431,
        7432,
        7433,
    )


def test_config_toml_loads_and_changes_nothing() -> None:
    config = load(str(ROOT / "config.toml"), {}, {})
    assert dataclasses.replace(config, source="defaults") == Config()


def test_config_toml_shows_every_setting_with_its_default() -> None:
    text = (ROOT / "config.toml").read_text("utf-8")
    document = tomllib.loads(text)
    assert {name: frozenset(table) for name, table in document.items()} == {
        name: keys(cls) for name, cls in SECTIONS.items()
    }
    commented = tomllib.loads("\n".join(re.findall(r"(?m)^# ((?:\[|[a-z_]+ = ).*)$", text)))
    assert set(commented["users"][0]) == keys(User)
    shown = commented["providers"]["example"]
    assert set(shown) - set(SECRET_KEYS) - set(NEXT_KEYS) == keys(Provider)
    for field in dataclasses.fields(Provider):
        if field.name in shown and field.default and field.default is not dataclasses.MISSING:
            assert shown[field.name] == field.default, field.name
    assert all(key in text for key in SECRET_KEYS + NEXT_KEYS[:2] + SUBJECT_KEYS)


def test_environment_overrides_the_file_and_flags_override_both(write: Write) -> None:
    path = write('[node]\nname = "file"\nbase_port = 1000\n[raft]\npace = 2\n')
    environ = {"TIDEWARDEN_NODE_NAME": "environ", "TIDEWARDEN_NODE_BASE_PORT": "2000"}
    config = load(path, environ, {"node.base_port": "3_000"})
    assert (config.node.name, config.node.base_port, config.raft.pace) == ("environ", 3000, 2.0)
    assert config.source == path


def test_every_problem_comes_at_once_with_file_and_line(write: Write) -> None:
    path = write('[node]\nbase_port = "x"\nbase_prt = 1\n\n[cluser]\n[store]\nfsync = "never"\n')
    found = problems(
        path, {"TIDEWARDEN_LIMITS_BATCH_MAX": "0"}, {"raft.pace": "nan", "raft.pase": "1"}
    )
    assert sorted(found) == sorted(
        [
            f"{path}:2: node.base_port: found 'x'; allowed: a whole number from 1 to 65,531",
            f"{path}:3: unknown setting node.base_prt; did you mean 'base_port'?",
            f"{path}:5: unknown section 'cluser'; did you mean 'cluster'?",
            f"{path}:7: store.fsync: found 'never'; allowed: one of 'everysec', 'always'",
            (
                "environment TIDEWARDEN_LIMITS_BATCH_MAX: limits.batch_max: found '0'; "
                "allowed: a whole number from 1 to 100,000"
            ),
            "flag raft.pace: raft.pace: found 'nan'; allowed: a number from 0.1 to 100",
            "flag raft.pase: unknown setting; did you mean 'raft.pace'?",
        ]
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[node]\nbase_port = true\n", "found True; allowed: a whole number"),
        ("[node]\nbase_port = 7420.0\n", "found 7420.0; allowed: a whole number"),
        ("[node]\nbase_port = 65532\n", "from 1 to 65,531"),
        ("[raft]\npace = inf\n", "found inf; allowed: a number"),
        ('[node]\nname = "a.b"\n', "1 to 63 of A-Z"),
        ('[node]\nhost = ""\n', "an address or host name to listen on"),
        ("node = 3\n", "allowed is a section [node]"),
        ("users = 3\n", "allowed are sections [[users]]"),
        ("providers = 3\n", "allowed are sections [providers.NAME]"),
        ("[cluster]\nmembers = { n0 = 1 }\n", "node names with 'host:base_port' each"),
        ('[cluster]\nmembers = { n0 = "a" }\n', "'host:base_port'"),
        (
            '[cluster]\nmembers = { n1 = "a:1" }\n[store]\nurl="redis://h"\n[cluster2]',
            "unknown section 'cluster2'",
        ),
        ("[limits]\nrequest_bytes = 5\n", "at least limits.payload_bytes"),
        ("[store]\nmaxmemory_bytes = 5\n", "0 or at least 1,048,576"),
        ('[store]\nurl = "http://x"\n', "begins redis:// or rediss:// or unix://"),
        ('[store]\nurl = "redis+sentinel://h:1,h:2"\n', "found no service in it"),
        ('[store]\nurl = "redis+sentinel://h:1,h:2/a/b"\n', "found no service in it"),
        ('[store]\nurl = "redis+sentinel://"\n', "then a host"),
        (
            '[store]\nurl = "redis+sentinel://u:secret@h:1,h:port/main"\n',
            "a host or a port that is none",
        ),
        ('[store]\nurl = "redis+sentinel://h:1,,h:2/main"\n', "a host or a port that is none"),
        ('[store]\nurl = "unix+sentinel://h:1/main"\n', "or redis+sentinel:// or redis+cluster://"),
        ('[store]\nurl = "redis+cluster://"\n', "then a host"),
        (
            '[store]\nurl = "redis+cluster://h:1,h:port"\n',
            "a host or a port that is none; allowed: redis+cluster://host:port,host:port",
        ),
        ('[store]\nurl = "redis+cluster://u:secret@h:1/2"\n', "found a database"),
        ('[store]\nurl = "redis+cluster://h:1?db=1"\n', "found a database"),
        ('[store]\nurl = "redis://h:99999"\n', "with a port from 1 to 65535"),
        ('[store]\nurl = "unix://relative"\n', "the whole path of the socket"),
        ('[vault]\nkey_env = "A"\nkey_file = "b"\n', "one of the two"),
        ('[vault]\nkey_env = "no good"\n', "the name of an environment variable"),
        ('[cluster]\nsecret_file = "/no/such"\n', "No such file or directory"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(
    write: Write, text: str, expected: str
) -> None:
    assert expected in "\n".join(problems(write(text)))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"[node\n", "is not TOML"),
        (b"a = \xff\n", "is not UTF-8 at byte 4"),
        (b"[node]\nname='a'\nname='b'\n", "not TOML"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    assert only(str(path)).startswith(f"{path}: ")
    assert expected in only(str(path))
    assert "cannot be read: No such file" in only(str(tmp_path / "absent.toml"))
    assert "cannot be read: Is a directory" in only(str(tmp_path))


def test_a_misspelt_variable_is_a_problem_but_those_of_others_are_not() -> None:
    assert "did you mean 'TIDEWARDEN_NODE_BASE_PORT'?" in only(
        None, {"TIDEWARDEN_NODE_BASEPORT": "1"}
    )
    others = {
        "TIDEWARDEN_URL": "redis://h",
        "TIDEWARDEN_SERVICE_HOST": "10.0.0.1",
        "TIDEWARDEN_PORT": "tcp://10.0.0.1:7420",
        "TIDEWARDEN_PORT_7420_TCP_ADDR": "10.0.0.1",
        "TIDEWARDEN_MY_KEY": "x",
        "OTHER": "y",
    }
    assert (
        load(None, {**others, "TIDEWARDEN_VAULT_KEY_ENV": "TIDEWARDEN_MY_KEY"}, {}).vault.key_env
        == "TIDEWARDEN_MY_KEY"
    )


THREE = 'members = { n0 = "10.0.0.1:7420", n1 = "[::1]:7430", n2 = "h:7440" }'


def test_embedded_stores_of_peers_replicate(write: Write, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s\n")
    text = f'[cluster]\nsecret_file = "{secret}"\n{THREE}\n'
    config = load(write(text), {}, {})
    assert config.replicated
    assert config.member_stores == {"n0": "10.0.0.1:7423", "n1": "[::1]:7433", "n2": "h:7443"}
    assert config.loss_warning == ""
    worker = load(write(text), {}, {"node.role": "worker", "node.name": "w0"})
    assert worker.replicated
    assert worker.member_stores == config.member_stores
    own = load(write(text + '[store]\nurl = "redis://:pw@h:1/0"\n'), {}, {})
    assert not own.replicated
    assert own.peers().keys() == {"n1", "n2"}
    assert "pw" not in repr(own)


def test_a_lone_nodes_store_replicates_where_it_had_peers_or_waits_for_them(
    write: Write, tmp_path: Path
) -> None:
    lone = {"node.data_dir": str(tmp_path)}
    assert not load(None, {}, lone).replicated
    (tmp_path / "store").mkdir()
    assert not load(None, {}, lone).replicated
    (tmp_path / "store" / "lineage.json").touch()
    assert load(None, {}, lone).replicated
    assert not load(None, {}, lone | {"store.url": "redis://h"}).replicated
    secret = tmp_path / "secret"
    secret.write_text("s\n")
    text = f'[cluster]\nsecret_file = "{secret}"\n{THREE}\n'
    assert load(write(text), {}, {"node.role": "joining"}).replicated


def test_two_members_are_taken_with_a_warning(write: Write, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s\n")
    text = (
        f'[cluster]\nsecret_file = "{secret}"\nmembers = {{ n0 = "127.0.0.1:7420", n1 ='
        ' "127.0.0.1:7430" }\n'
    )
    config = load(write(text), {}, {})
    assert "two nodes (n0 and n1) survive the loss of neither" in config.loss_warning
    assert load(write(text), {}, {"store.url": "redis://h"}).loss_warning == ""
    assert load(None, {}, {"node.data_dir": str(tmp_path)}).loss_warning == ""


def test_a_worker_of_embedded_stores_needs_the_members_and_their_secret(write: Write) -> None:
    alone = problems(write('[node]\nrole = "worker"\nname = "w0"\n'))
    assert len(alone) == 1
    assert "cluster.members: found none with role 'worker' and an embedded store" in alone[0]
    text = f'[cluster]\n{THREE}\n[node]\nrole = "worker"\nname = "w0"\n'
    assert "cluster.secret_file: found none; allowed with peers" in only(write(text))
    assert load(write(text + '[store]\nurl = "redis://h"\n'), {}, {}).peers()


def test_embedded_stores_wait_for_those_in_sync_and_not_for_a_count(write: Write) -> None:
    assert "store.replicas: found 1 with an embedded store, where the stores that are in sync" in (
        only(write("[store]\nreplicas = 1\n"))
    )


def test_members_must_name_this_node_at_its_port_once_each_and_share_a_secret(write: Write) -> None:
    text = (
        '[store]\nurl = "redis://h"\n[cluster]\nmembers = { n1 = "h:7420", n2 = "h:7420", "n.3" ='
        ' "h:1" }\n'
    )
    found = "\n".join(problems(write(text)))
    assert "node.name: found 'n0'; allowed: one of cluster.members: n.3, n1, n2" in found
    assert "found one address twice" in found
    assert "found the name 'n.3'" in found
    assert "cluster.secret_file: found none; allowed with peers" in found
    assert "allowed as its port: node.base_port, which is 7420" in only(
        write('[cluster]\nmembers = { n0 = "127.0.0.1:7430" }\n')
    )


def test_off_loopback_needs_users_and_a_cluster_secret(write: Write, tmp_path: Path) -> None:
    found = problems(write('[node]\nhost = "0.0.0.0"\n'))
    assert len(found) == 2
    assert "[[users]]" in found[0]
    assert "cluster.secret_file" in found[1]
    secret = tmp_path / "secret"
    secret.write_text("s")
    user = f'[[users]]\nname = "ada"\nsecret_hash = "{hash_generated("x")}"\n'
    text = f'[node]\nhost = "0.0.0.0"\n[cluster]\nsecret_file = "{secret}"\n{user}'
    assert load(write(text), {}, {}).users[0].name == "ada"
    secret.write_text("\n")
    assert "it is empty" in only(write(text))


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.8.8", "::1", "[::1]"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("example.org")


def test_an_address_to_listen_on_has_no_brackets(write: Write) -> None:
    assert load(write('[node]\nhost = "::1"\n'), {}, {}).address == "[::1]:7420"
    assert "node.host: found '[::1]'; allowed: an IPv6 address without brackets" in only(
        write('[node]\nhost = "[::1]"\n')
    )


def test_a_users_rights_are_checked_one_by_one(write: Write) -> None:
    head = f'[[users]]\nname = "a"\nsecret_hash = "{hash_generated("x")}"\n'
    assert load(write(head), {}, {}).users[0].rights == ("all",)
    assert load(write(f"{head}rights = []\n"), {}, {}).users[0].rights == ()
    text = f'{head}rights = ["put:mails.*", "tak:a", "put:", "token:read:x/"]\n'
    found = problems(write(text))
    assert len(found) == 3
    assert all(":4: " in problem for problem in found)
    assert "users[0].rights: found 'tak:a'; allowed is one of all, put, take" in found[0]
    assert "did you mean 'take'?" in found[0]
    assert "found 'put:'; allowed after put: is a pattern" in found[1]
    assert "found 'token:read:x/'; allowed after token:read:x/ is an account's name" in found[2]
    assert (
        "allowed: a list of rights like 'put:mails.*'"
        in problems(write(f'{head}rights = "put"\n'))[0]
    )


def test_users_are_checked_and_their_hashes_not_shown(write: Write) -> None:
    text = (
        '[[users]]\nname = "a"\nsecret_hash = "hunter2"\n[[users]]\nname = "a"\nsecret_hsh = "x"\n'
    )
    found = "\n".join(problems(write(text)))
    assert "users[0].secret_hash: found a value that is not shown" in found
    assert "hunter2" not in found
    assert ":6: unknown setting users[1].secret_hsh; did you mean 'secret_hash'?" in found
    assert "users[1].secret_hash: missing" in found
    assert ":5: users[1].name: found 'a' twice" in found


def test_a_provider_takes_its_secret_from_one_place(write: Write, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("from:file \r\n")
    for line, environ, expected in [
        ('client_secret = "s%t+:/"', {}, "s%t+:/"),
        (f'client_secret_file = "{file}"', {}, "from:file "),
        ('client_secret_env = "X"', {"X": "from env"}, "from env"),
        ('client_secret = "a"', {"TIDEWARDEN_PROVIDERS_P_CLIENT_SECRET": "from env"}, "from env"),
        (
            f'client_secret_file = "{file}"',
            {"TIDEWARDEN_PROVIDERS_P_CLIENT_SECRET": "from env"},
            "from env",
        ),
    ]:
        provider = load(write(f"{GOOD_PROVIDER}{line}\n"), environ, {}).providers["p"]
        assert provider.client_secret.reveal() == expected
        assert expected not in repr(provider)
        assert provider.name == "p"
    assert not load(write(f'{GOOD_PROVIDER}auth = "none"\n'), {}, {}).providers["p"].client_secret


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "",
            (
                "found none of them; allowed: exactly one of client_secret, client_secret_file,"
                " client_secret_env"
            ),
        ),
        (
            'client_secret = "a"\nclient_secret_env = "X"\n',
            "found client_secret and client_secret_env; allowed: exactly one",
        ),
        ('client_secret = "a"\nauth = "none"\n', "not allowed with auth = 'none'"),
        ('client_secret_env = "NO_SUCH"\n', "which the environment does not have"),
        ('client_secret_file = "/no/such"\n', "No such file or directory"),
        ('client_secret_file = "~nobody-at-all/x"\n', "No such file or directory"),
        ('client_secret_file = "a\\u0000b"\n', "no path holds such characters"),
        ("client_secret_env = { a = 1 }\n", "found no text; allowed: a text"),
        ("client_secret = 5\n", "found no text"),
        ('client_secret = "a"\nauth = "jwt"\n', "one of 'basic', 'basic_raw', 'post', 'none'"),
        ('client_secret = "a"\nrotation = "no"\n', "one of 'none', 'rolling', 'single_use'"),
        ('client_secret = "a"\nrefreshers = -1\n', "from 0 to 1,000"),
        (
            'client_secret = "a"\nmargin = 5\n',
            "unknown setting providers.p.margin; did you mean 'margin_s'?",
        ),
    ],
)
def test_a_provider_is_checked(write: Write, text: str, expected: str) -> None:
    assert expected in only(write(GOOD_PROVIDER + text))


@pytest.mark.parametrize(
    "url",
    [
        "ftp://h/t",
        "h/t",
        "https://",
        "https://u:p@h/t",
        "https://h/t#f",
        "https://h:0/t",
        "https://h /t",
    ],
)
def test_a_token_url_is_http_or_https(url: str) -> None:
    flags = {"providers.p.token_url": url, "providers.p.client_id": "c", "providers.p.auth": "none"}
    assert "providers.p.token_url: found" in only(None, {}, flags)


def test_a_provider_may_come_from_flags_alone() -> None:
    flags = {
        "providers.p.token_url": "https://h:1/t",
        "providers.p.client_id": "c",
        "providers.p.auth": "none",
    }
    assert load(None, {}, flags).providers["p"].token_url == "https://h:1/t"
    assert "providers.a b: found the name 'a b'" in "\n".join(
        problems(None, {}, {"providers.a b.auth": "none"})
    )


def test_a_list_of_functions(write: Write) -> None:
    path = write('[queues]\nstrategies = ["a.b:pick", "a.pick"]')
    assert load(path, {}, {}).queues.strategies == ("a.b:pick", "a.pick")
    assert load(path, {"TIDEWARDEN_QUEUES_STRATEGIES": "c:d, e.f"}, {}).queues.strategies == (
        "c:d",
        "e.f",
    )
    assert load(None, {}, {"queues.strategies": ""}).queues.strategies == ()
    for wrong in ('"a.b:pick"', '["pick"]', '["a b:c"]', "[1]", '["a:b:c"]'):
        with pytest.raises(
            ConfigError, match=r"queues\.strategies: .*allowed: a list of names like"
        ):
            load(write(f"[queues]\nstrategies = {wrong}"), {}, {})


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("host", "0.0.0.0", "allowed only with [[users]]"),
        ("host", "[::1]", "without brackets"),
        ("port", "7421", "another of this node's ports"),
        ("client_ca", "/nowhere.pem", "allowed only with node.tls_cert"),
    ],
)
def test_where_the_beanstalkd_door_may_listen(setting: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        load(None, {}, {"beanstalkd.enabled": "true", f"beanstalkd.{setting}": value})
    assert f"beanstalkd.{setting}" in str(caught.value)


def test_the_beanstalkd_door_is_off_and_four_above_the_first_port() -> None:
    config = load(None, {}, {"node.base_port": "9000"})
    assert (config.beanstalkd.enabled, config.beanstalkd_port) == (False, 9004)
    assert load(None, {}, {"beanstalkd.port": "11300"}).beanstalkd_port == 11300


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        ('allow = ["10.0.0.0/99"]', "beanstalkd.allow: found one that is none"),
        ('allow = ["all"]', "beanstalkd.allow: found"),
        ('user = "a b"', "beanstalkd.user: found 'a b'; allowed: the name of one"),
        ('user = "nobody"', "beanstalkd.user: found 'nobody'; allowed: the name of one"),
    ],
)
def test_whose_rights_clients_of_beanstalkd_have(tmp_path: Path, written: str, fault: str) -> None:
    file = tmp_path / "c.toml"
    secret = hash_generated("s3cret")
    user = f'[[users]]\nname = "jobs"\nsecret_hash = "{secret}"\n'
    file.write_text(f"[beanstalkd]\n{written}\n{user}")
    with pytest.raises(ConfigError) as raised:
        load(str(file), {}, {})
    assert fault in str(raised.value)
    file.write_text(f'[beanstalkd]\nuser = "jobs"\nallow = ["10.0.0.0/8"]\n{user}')
    assert load(str(file), {}, {}).beanstalkd.user == "jobs"


def test_browsers_come_from_one_address_and_go_to_those_that_are_listed(write: Write) -> None:
    text = (
        '[connect]\nurl = "https://auth.example.com/tide"\nlink_s = 60\n'
        'return_to = ["https://app.example.com/connected", "http://localhost:8000/"]\n'
    )
    found = load(write(text), {}, {}).connect
    assert found.redirect_uri == "https://auth.example.com/tide/v1/connect/callback"
    assert (found.link_s, len(found.return_to)) == (60.0, 2)
    assert Config().connect.url == ""


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("auth.example.com", "allowed: an address that begins http:// or https://"),
        ("http://auth.example.com", "where codes and cookies can be read on the way"),
        ("https://auth.example.com/?x=1", "a host and perhaps a path, without a query"),
        ("https://auth.example.com/a%20b", "a host and perhaps a path, without a query"),
        ("https://auth.example.com/#x", "a user, a password or a #fragment"),
        ("https://auth.example.com/#", "a user, a password or a #fragment"),
    ],
)
def test_an_address_at_which_no_browser_may_come(write: Write, url: str, fault: str) -> None:
    told = only(write(f'[connect]\nurl = "{url}"\n'))
    assert ":2: connect.url: found " in told
    assert fault in told


def test_an_address_to_which_no_browser_may_go(write: Write) -> None:
    text = '[connect]\nurl = "https://a.example"\nreturn_to = ["http://app.example.com/x"]\n'
    told = only(write(text))
    assert ":3: connect.return_to: found 'http://app.example.com/x', which is http:// on" in told
    assert "allowed: addresses like 'https://app.example.com/connected'" in told
    told = only(write('[connect]\nreturn_to = ["https://app.example.com/x"]\n'))
    assert "connect.return_to: found some; allowed only with connect.url" in told
