"""The cluster's secret: made once, private, never silently empty."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tidewarden.config.cluster_secret import cluster_secret, exposed, key_check, key_names
from tidewarden.config.load import Cluster, Config, Node, Vault, load
from tidewarden.errors import ConfigError


def test_a_lone_node_makes_one_once(tmp_path: Path) -> None:
    config = load(None, {}, {"node.data_dir": str(tmp_path)})
    secret = cluster_secret(config)
    assert len(secret) > 30
    assert cluster_secret(config) == secret
    assert (tmp_path / "secrets" / "cluster.key").stat().st_mode & 0o777 == 0o600


def test_a_named_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(" a secret of some length \n")
    config = load(None, {}, {"node.data_dir": str(tmp_path), "cluster.secret_file": str(path)})
    assert cluster_secret(config) == "a secret of some length"


def test_an_empty_file_is_refused_by_name(tmp_path: Path) -> None:
    config = load(None, {}, {"node.data_dir": str(tmp_path)})
    path = tmp_path / "secrets" / "cluster.key"
    path.parent.mkdir()
    path.write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        cluster_secret(config)


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    config = load(None, {}, {"node.data_dir": str(blocked)})
    with pytest.raises(ConfigError, match="cannot be used"):
        cluster_secret(config)


def test_a_key_is_known_by_its_check_alone() -> None:
    assert key_check("abc\n") == key_check("abc") != key_check("abd")
    assert len(key_check("x")) == 16
    assert key_check("abc\n\nabd\n") == f"{key_check('abc')} {key_check('abd')}"
    assert key_check("\n") == ""


def test_a_backup_names_the_keys_and_has_none(tmp_path: Path) -> None:
    (tmp_path / "c.key").write_text("very secret\n")
    config = Config(
        cluster=Cluster(secret_file=str(tmp_path / "c.key")), vault=Vault(key_env="KEY")
    )
    names = key_names(config, {"KEY": "also secret"})
    assert names["cluster"] == {"where": str(tmp_path / "c.key"), "check": key_check("very secret")}
    assert names["vault"]["check"] == key_check("also secret")
    assert "secret" not in str({name: key["check"] for name, key in names.items()})
    assert key_names(Config(node=Node(data_dir=str(tmp_path))), {})["vault"]["check"] == ""


def test_files_that_everybody_may_read_are_named(tmp_path: Path) -> None:
    config = load(None, {}, {"node.data_dir": str(tmp_path)})
    cluster_secret(config)
    assert not exposed(config), "those that it makes are private"
    cluster, vault, tls = (
        tmp_path / "secrets" / name for name in ("cluster.key", "vault.key", "tls.key")
    )
    for path, mode in ((cluster, 0o644), (vault, 0o604), (tls, 0o640)):  # a group may be meant to
        path.write_text("x")
        path.chmod(mode)
    config = replace(config, node=replace(config.node, tls_key=str(tls)))
    assert [fault.partition(":")[0] for fault in exposed(config)] == [
        "cluster.secret_file",
        "vault.key_file",
    ]
    assert f"everybody on this host may read {cluster} (0644)" in exposed(config)[0]
    config = replace(config, vault=Vault(key_env="K"))
    assert len(exposed(config)) == 1
