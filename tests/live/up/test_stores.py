"""The stores of ``up``: one for each of three nodes, and what becomes of a folder with one."""

from __future__ import annotations

from pathlib import Path

from benchmarks.ports import free_ports
from tidewarden.cli.up.data_folder import FolderPlan, make_secrets, write_node_files
from tidewarden.cli.up.stores import LocalStores
from tidewarden.clock import SystemClock
from tidewarden.config.load import load


async def test_the_common_store_is_moved_once_and_told(tmp_path: Path) -> None:
    told: list[str] = []
    config = load(None, {}, {"node.base_port": str(free_ports(30))})
    ours = FolderPlan(tmp_path / "data", config, None, 3, 0)
    make_secrets(ours)
    (ours.common_store / "appendonlydir").mkdir(parents=True)
    (ours.common_store / "appendonlydir" / "kept").touch()
    for _ in range(2):
        stores = LocalStores(ours, SystemClock(), lambda who, what: told.append(f"{who}: {what}"))
        try:
            assert await stores.start() == "embedded"
            assert set(stores.hosts) == {"n0", "n1", "n2"}
            assert len({stores.pid(name) for name in ours.names}) == 3
        finally:
            await stores.stop()
        assert (ours.own_store("n0") / "appendonlydir" / "kept").exists()
        assert not ours.common_store.exists()
        assert [line for line in told if "is now that of n0" in line] == [
            f"up: the store of all nodes, {ours.common_store}, is now that of n0,"
            f" {ours.own_store('n0')}; the other nodes' stores copy its data"
        ]
    write_node_files(ours, "embedded")
    for name in ours.names:
        config = load(str(ours.folder(name) / "node.toml"), {}, {})
        assert config.replicated
        assert config.store_folder == ours.own_store(name).absolute()
        assert config.member_stores[name] == ours.address(name, 3)
