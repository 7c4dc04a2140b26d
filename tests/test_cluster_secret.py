"""The cluster's secret: made once, private, never silently empty."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidewarden.cluster_secret import cluster_secret
from tidewarden.config import load
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
