"""Which stores ``up`` runs on which folder; whole clusters do it in tests/live/up."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.doors.command_line import app
from typer.testing import CliRunner

from tidewarden.cli.up import resize
from tidewarden.cli.up.data_folder import FolderPlan, make_secrets
from tidewarden.cli.up.stores import LocalStores, check_stores
from tidewarden.clock import SystemClock
from tidewarden.config.load import load
from tidewarden.errors import ConfigError


def plan(folder: Path, count: int, url: str = "embedded", one_store: bool = False) -> FolderPlan:
    return FolderPlan(folder, load(None, {}, {"store.url": url}), None, count, 0, one_store)


def with_data(folder: Path) -> Path:
    (folder / "appendonlydir").mkdir(parents=True)
    return folder


@pytest.mark.parametrize(
    ("count", "one_store", "each"),
    [(1, False, False), (2, False, False), (3, False, True), (5, False, True), (3, True, False)],
)
def test_three_or_more_nodes_have_a_store_each(
    tmp_path: Path, count: int, one_store: bool, each: bool
) -> None:
    fresh = plan(tmp_path, count, one_store=one_store)
    check_stores(fresh)
    assert fresh.store_each == each
    with_data(tmp_path / "store")
    check_stores(fresh)
    assert fresh.store_each == each, "one for all becomes that of the first node"
    assert (7423 in fresh.ports()) == each


@pytest.mark.parametrize("count", [1, 2, 3])
def test_stores_of_their_own_stay_where_nodes_leave(tmp_path: Path, count: int) -> None:
    with_data(tmp_path / "n0" / "store")
    fewer = plan(tmp_path, count)
    check_stores(fewer)
    assert fewer.store_each


def test_a_folder_without_data_decides_nothing(tmp_path: Path) -> None:
    (tmp_path / "n0" / "store").mkdir(parents=True)
    assert not plan(tmp_path, 1).store_each
    check_stores(plan(tmp_path, 3, one_store=True))


def test_a_server_of_ones_own_is_the_store_of_all(tmp_path: Path) -> None:
    with_data(tmp_path / "n0" / "store")
    with_data(tmp_path / "store")
    own = plan(tmp_path, 3, "redis://h")
    check_stores(own)
    assert not own.store_each
    assert 7423 not in own.ports()


def test_one_store_cannot_take_the_place_of_three(tmp_path: Path) -> None:
    for name in ("n0", "n1", "n2"):
        with_data(tmp_path / name / "store")
    with pytest.raises(ConfigError) as caught:
        check_stores(plan(tmp_path, 3, one_store=True))
    (said,) = caught.value.problems
    assert said.startswith(f"--stores 1: {tmp_path} has a store of each node (n0, n1, n2), and one")
    assert "leave --stores out" in said
    assert "tidewarden cluster restore FILE --data-dir NEW, then up --stores 1" in said


def test_data_in_both_places_are_refused(tmp_path: Path) -> None:
    with_data(tmp_path / "store")
    with_data(tmp_path / "n0" / "store")
    with pytest.raises(ConfigError, match="Move the one that you do not want out of the data"):
        check_stores(plan(tmp_path, 3))


def test_a_common_store_becomes_that_of_each_node_while_all_nodes_are_there(tmp_path: Path) -> None:
    with_data(tmp_path / "store")
    for name in plan(tmp_path, 5).names:
        (tmp_path / name).mkdir()
    resize.settle(plan(tmp_path, 5))
    with pytest.raises(ConfigError, match=r"for which all 5 nodes are needed once; start it with"):
        check_stores(plan(tmp_path, 3))
    check_stores(plan(tmp_path, 5))
    check_stores(plan(tmp_path, 3, one_store=True))


async def test_what_cannot_be_moved_stays_and_is_named(tmp_path: Path) -> None:
    ours = plan(tmp_path / "data", 3)
    make_secrets(ours)
    with_data(ours.common_store)
    (ours.own_store("n0")).mkdir(parents=True)
    (ours.own_store("n0") / "something").touch()
    with pytest.raises(ConfigError, match=r"could not be moved to .*: Directory not empty"):
        await LocalStores(ours, SystemClock(), lambda *_: None).start()
    assert ours.has_common_data
    assert os.listdir(ours.own_store("n0")) == ["something"]


def test_stores_are_for_up_to_run(tmp_path: Path) -> None:
    words = ["up", "--json", "--data-dir", str(tmp_path), "--stores", "1", "--store-url"]
    done = CliRunner().invoke(app, [*words, "redis://h"])
    assert done.exit_code == 4
    assert "not with --store-url" in json.loads(done.stdout)["problems"][0]
