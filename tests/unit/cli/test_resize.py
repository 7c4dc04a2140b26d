"""
``up`` on a folder that had another number of nodes; whole clusters do it in
tests/live/up/test_up.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tidewarden.cli.up import resize
from tidewarden.cli.up.data_folder import FolderPlan, joined
from tidewarden.config.load import load
from tidewarden.errors import ConfigError


def plan(folder: Path, count: int) -> FolderPlan:
    return FolderPlan(folder, load(None, {}, {}), None, count, 0)


def test_those_that_stay_must_be_a_majority(tmp_path: Path) -> None:
    assert resize.surplus(plan(tmp_path, 2)) == []
    assert resize.settled(plan(tmp_path, 2)) == []
    for name in ("n0", "n1", "n2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "raft.journal").touch()
        assert resize.settled(plan(tmp_path, 3)) == [], (
            "a journal is there before its node is a member"
        )
    resize.settle(plan(tmp_path, 3))
    assert resize.settled(plan(tmp_path, 5)) == ["n0", "n1", "n2"]
    assert [joined(plan(tmp_path, 5), name) for name in ("n0", "n3")] == [True, False]
    assert resize.surplus(plan(tmp_path, 5)) == []
    assert resize.surplus(plan(tmp_path, 2)) == ["n2"]
    with pytest.raises(ConfigError, match=r"--nodes 1: .* has 3 nodes.*; go by --nodes 2 first"):
        resize.surplus(plan(tmp_path, 1))
    resize.forget(plan(tmp_path, 2), "n2")
    assert resize.surplus(plan(tmp_path, 1 + 1)) == []
    with pytest.raises(
        ConfigError, match=r"--nodes 1: .* has 2 nodes.*cluster leave n1`, stop it, then --nodes 1"
    ):
        resize.surplus(plan(tmp_path, 1))
