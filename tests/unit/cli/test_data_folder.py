"""The data folder of ``up``: ports, secrets, nodes' files."""

from __future__ import annotations

import os
import socket
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tidewarden.cli.up.data_folder import (
    FolderPlan,
    check_ports,
    make_secrets,
    node_environ,
    to_toml,
    write_node_files,
)
from tidewarden.config.load import check_secret, load
from tidewarden.errors import ConfigError


def plan(
    tmp_path: Path, file_text: str = "", nodes: int = 3, sandbox: int = 0, **flags: str
) -> FolderPlan:
    file = tmp_path / "config.toml"
    file.write_text(file_text)
    config = load(str(file), {}, {name.replace("__", "."): value for name, value in flags.items()})
    return FolderPlan(tmp_path / "data", config, file, nodes, sandbox)


def test_ports_follow_from_the_base(tmp_path: Path) -> None:
    assert sorted(plan(tmp_path, nodes=2, sandbox=1).ports()) == [
        7420,
        7421,
        7422,
        7430,
        7431,
        7432,
        7510,
    ]
    assert plan(tmp_path, nodes=12, sandbox=1).sandbox_port == 7540


def test_a_busy_port_is_named_with_use_holder_and_way_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConfigError) as caught:
            check_ports(plan(tmp_path, nodes=1, node__base_port=str(port - 1)))
    problems = caught.value.problems
    assert any(
        line.startswith(f"port {port} (n0, HTTP): in use by process {os.getpid()} (")
        for line in problems
    )
    assert "--base-port N" in problems[-1]


def test_nodes_on_an_ipv6_address_know_each_other_by_it(tmp_path: Path) -> None:
    ours = plan(tmp_path, nodes=2, node__host="::1")
    make_secrets(ours)
    write_node_files(ours, "unix:///s")
    config = load(str(ours.folder("n1") / "node.toml"), {}, {})
    assert config.cluster.members == {"n0": "[::1]:7420", "n1": "[::1]:7430"}
    assert (config.node.host, ours.address("n1", 1)) == ("::1", "[::1]:7431")


def test_ports_end_somewhere(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="port 65542 would be needed; 65535 is the highest"):
        check_ports(plan(tmp_path, nodes=3, node__base_port="65519"))


def test_secrets_are_made_once_and_for_the_owner_alone(tmp_path: Path) -> None:
    ours = plan(tmp_path)
    make_secrets(ours)
    names = ("admin.secret", "cluster.key", "vault.key")
    first = [ours.secret(name) for name in names]
    make_secrets(ours)
    assert [ours.secret(name) for name in names] == first
    assert len(set(first)) == 3
    folder = tmp_path / "data" / "secrets"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE((folder / name).stat().st_mode) for name in names} == {0o600}


def test_data_without_its_key_is_refused(tmp_path: Path) -> None:
    ours = plan(tmp_path)
    ours.data_dir.mkdir()
    make_secrets(ours)
    write_node_files(ours, "unix:///s")
    (ours.data_dir / "secrets" / "vault.key").unlink()
    with pytest.raises(
        ConfigError, match=r"vault\.key: missing, but .* has data made with it \(n0, n1, n2\)"
    ):
        make_secrets(ours)
    assert not (ours.data_dir / "secrets" / "vault.key").exists()


def test_a_vault_key_from_elsewhere_is_not_made(tmp_path: Path) -> None:
    ours = plan(tmp_path, '[vault]\nkey_env = "KEY"\n')
    make_secrets(ours)
    write_node_files(ours, "unix:///s")
    assert not (ours.data_dir / "secrets" / "vault.key").exists()
    assert tomllib.loads((ours.folder("n0") / "node.toml").read_text())["vault"] == {
        "key_env": "KEY"
    }


def test_a_node_file_joins_the_users_settings_and_ours(tmp_path: Path) -> None:
    text = """
[node]
processes = 2
[raft]
pace = 2.5
[[users]]
name = "reader"
secret_hash = "sha256$000000000000000000000000000000000000000000000000000000000000000a"
[providers."big-one"]
token_url = "https://as.example/token"
client_id = "a \\"quoted\\" ü"
client_secret = "%+:/"
"""
    ours = plan(tmp_path, text, nodes=2, sandbox=5)
    make_secrets(ours)
    write_node_files(ours, "unix://:pw@/x/s")
    path = ours.folder("n1") / "node.toml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    config = load(str(path), {}, {})
    assert config.node.name == "n1"
    assert config.node.base_port == 7430
    assert config.node.data_dir == str(tmp_path / "data" / "n1")
    assert config.cluster.members == {"n0": "127.0.0.1:7420", "n1": "127.0.0.1:7430"}
    assert config.store.url == "unix://:pw@/x/s"
    assert (config.raft.pace, config.node.processes) == (2.5, 2)
    assert [user.name for user in config.users] == ["reader", "admin"]
    assert check_secret(ours.secret("admin.secret"), config.users[1].secret_hash)
    assert config.providers["big-one"].client_id == 'a "quoted" ü'
    assert config.providers["sandbox"].token_url == "http://127.0.0.1:7510/token"


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"a": 1, "b": True, "c": 1.5, "d": 'x\n"\\\u0000\x7f\u2028😀', "e": [1, [2, 3], []]},
        {"t": {"u": {"v": 1}, "w": 2}, "a b.c": {"x": 1}},
        {"list": [{"a": 1, "t": {"b": 2}}, {"a": 3}], "z": {"y": "x"}},
    ],
)
def test_what_is_written_is_read_again(table: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(table)) == table


def test_what_would_make_all_nodes_one_does_not_reach_them() -> None:
    environ = {
        "PATH": "/bin",
        "TIDEWARDEN_NODE_NAME": "x",
        "TIDEWARDEN_STORE_URL": "y",
        "TIDEWARDEN_LOG_LEVEL": "debug",
    }
    assert node_environ(environ) == {"PATH": "/bin", "TIDEWARDEN_LOG_LEVEL": "debug"}
