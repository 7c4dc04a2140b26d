"""
Hosts are lost, with what was on them: each way back of docs/replication.md is typed in here.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.exceptions import ResponseError
from support.cluster.harness import START_S, Node, until
from support.cluster.node_processes import PROCESSES, everywhere
from support.cluster.several import all_in_sync, cli, serving_nodes, start

from tidewarden.store.connection import PATIENCE_S

pytestmark = pytest.mark.timeout(400)


PUT = ("Q.PUT", "mails", "late")
TAKE = ("Q.TAKE", "WAIT", "100", "FROM", "mails")


@contextlib.contextmanager
def hosts(folder: Path, processes: int = 1) -> Iterator[dict[str, Node]]:
    """Three of them, all in sync, with one task that is acknowledged."""
    with serving_nodes(folder, processes) as found:
        all_in_sync(found)
        put(found["n0"], "m1")
        yield found


def put(node: Node, task: str) -> None:
    """Put it, however often it has to be asked for."""
    until(lambda: node.say("Q.PUT", "mails", "kept", "ID", task), START_S, what="it is put")


def lose(folder: Path, *nodes: Node) -> None:
    """They die with all that they had."""
    for node in nodes:
        node.kill()
        shutil.rmtree(folder / node.name)


def put_raft_aside(folder: Path, survivors: Iterable[Node]) -> None:
    """As "Raft's folders of a majority are lost" begins."""
    for node in survivors:
        node.terminate()
        aside = folder / node.name / "raft.lost"
        aside.mkdir(exist_ok=True)
        for file in (folder / node.name).glob("raft.[jd]*"):
            file.rename(aside / file.name)


def found_raft_anew(folder: Path, survivors: Iterable[Node], made: Iterable[Node]) -> None:
    """And goes on."""
    put_raft_aside(folder, survivors)
    start(made)


def answered(node: Node, *words: str) -> dict[str, Any] | str:
    """What the command line says, with --json; else its error."""
    done = cli(node, *words, "--json")
    said: dict[str, Any] = json.loads(done.stdout) if done.exit_code == 0 else {}
    return said or done.stderr


def chosen(node: Node) -> dict[str, Any]:
    """What a last resort would choose, once it would choose something."""

    def choice() -> dict[str, Any] | None:
        said = answered(node, "cluster", "recover")
        return said if isinstance(said, dict) else None

    return until(choice, START_S, what="it says what it would choose")


def says(node: Node, text: str) -> None:
    until(lambda: text in node.output.read_text(), START_S, what=f"{node.name} says {text!r}")


def whole(made: dict[str, Node], folder: Path) -> None:
    """All have the task, and nothing is left to say once somebody knows of the loss."""
    status = all_in_sync(made)
    assert status["loss"] == "possible"
    assert cli(made["n1"], "cluster", "confirm").exit_code == 0
    for node in made.values():
        assert node.say("Q.PEEK", "mails", "m1")
        until(lambda node=node: cli(node, "doctor").exit_code == 0, what="the doctor is content")


def test_a_lone_survivor_says_what_is_so_and_goes_on_when_another_is_back(tmp_path: Path) -> None:
    with hosts(tmp_path) as made:
        primary = made[made["n0"].status()["primary"]]
        alone, other = (node for node in made.values() if node is not primary)
        for node in (primary, other):
            node.kill()
        until(lambda: "1 of 3 nodes is heard" in cli(alone, "doctor").stdout, START_S, what="said")

        def refused() -> str:
            try:
                return str(alone.say("Q.PUT", "mails", "late"))
            except ResponseError as error:
                return str(error)

        said = until(lambda: "1 of 3" in (told := refused()) and told, START_S, what="it says why")
        assert said.startswith("NOQUORUM")
        assert f"{primary.name} was not heard since 20" in said
        assert f"{other.name} was not heard since 20" in said
        assert "start one of them" in said
        assert "1 of 3 nodes is heard" in cli(alone, "cluster", "recover").stderr
        assert "1 of 3 nodes is heard" in alone.http("/health/ready").text
        start([other])
        until(alone.ready, START_S, what="it serves again")
        put(alone, "m2")
        assert alone.say("Q.PEEK", "mails", "m1")


@pytest.mark.parametrize("is_primary", [True, False], ids=["the primary", "another"])
def test_each_process_of_a_lone_survivor_says_so_soon(tmp_path: Path, is_primary: bool) -> None:
    with hosts(tmp_path, PROCESSES) as made:
        primary = made["n0"].status()["primary"]
        alone = next(node for node in made.values() if (node.name == primary) == is_primary)
        with everywhere(alone) as clients:
            for node in made.values():
                if node is not alone:
                    node.kill()

            def refused(client: redis.Redis, words: tuple[str, ...]) -> tuple[str, float]:
                began_s = time.monotonic()
                try:
                    said = str(client.execute_command(*words))
                except ResponseError as error:
                    said = str(error)
                return said, time.monotonic() - began_s

            with ThreadPoolExecutor(len(clients)) as threads:
                for words in (PUT, TAKE):
                    ask = functools.partial(refused, words=words)

                    def say_it(ask: Callable[..., tuple[str, float]] = ask) -> bool:
                        answers = list(threads.map(ask, clients))
                        return all(
                            said.startswith("NOQUORUM")
                            and "1 of 3 nodes is heard" in said
                            and "start one of them" in said
                            and took_s < PATIENCE_S / 2
                            for said, took_s in answers
                        )

                    until(say_it, START_S, what=f"{words[0]} says soon what to do")
            for client in clients:
                assert "stale_ms" in client.execute_command("Q.STATS", "mails")


def test_a_host_is_replaced_and_another_has_lost_its_store_alone(tmp_path: Path) -> None:
    with hosts(tmp_path) as made:
        n0, n1, n2 = made.values()
        lose(tmp_path, n2)
        until(lambda: "n2" not in n0.status()["in_sync"], START_S, what="n2 is out of the set")
        for words in (("leave", "n2"), ("join", "n2", f"127.0.0.1:{n2.base_port}")):
            done = until(
                lambda words=words: (one := cli(n0, "cluster", *words)).exit_code == 0 and one,
                START_S,
                what=" ".join(words),
            )
            assert done.exit_code == 0
        joining = n2.config.read_text().replace('name = "n2"', 'name = "n2"\nrole = "joining"')
        n2.config.write_text(joining)
        start([n2])
        all_in_sync(made)
        assert n2.say("Q.PEEK", "mails", "m1")
        # Of another host only the store's folder is gone: it is just started.
        n1.kill()
        shutil.rmtree(tmp_path / "n1" / "store")
        start([n1])
        status = all_in_sync(made)
        assert status["loss"] == ""
        for node in made.values():
            assert node.say("Q.PEEK", "mails", "m1")


def test_after_a_power_cut_of_all_nobody_has_to_do_anything(tmp_path: Path) -> None:
    with hosts(tmp_path) as made:
        for node in made.values():
            node.kill()
            # what a reboot of the host leaves: no start is known to have lost nothing
            (tmp_path / node.name / "store" / "lineage.json").unlink()
        start(made.values())
        assert all_in_sync(made)["loss"] == "possible"
        assert made["n2"].say("Q.PEEK", "mails", "m1")
        assert cli(made["n0"], "cluster", "confirm").stdout == "noted: a loss was possible\n"


def test_the_folders_of_two_are_lost_and_the_third_goes_on(tmp_path: Path) -> None:
    with hosts(tmp_path) as made:
        n0, n1, n2 = made.values()
        lose(tmp_path, n1, n2)
        n1.start()
        says(n1, "Raft's folders of a majority are lost")
        until(lambda: not n1.running, START_S, what="it does not go on")
        shutil.rmtree(tmp_path / "n1")
        found_raft_anew(tmp_path, [n0], made.values())
        whole(made, tmp_path)
        put(n0, "m2")


def test_raft_is_lost_on_all_hosts_and_one_that_is_lost_is_not_replaced_yet(
    tmp_path: Path,
) -> None:
    with hosts(tmp_path) as made:
        n0, n1, n2 = made.values()
        epoch = n0.status()["epoch"]
        found_raft_anew(tmp_path, made.values(), made.values())
        assert all_in_sync(made)["loss"] == "", "every store has all that it had"
        until(lambda: n0.status()["epoch"] > epoch, START_S, what="epochs go on")
        put(n1, "m2")
        lose(tmp_path, n1, n2)
        put_raft_aside(tmp_path, [n0])
        n0.start()
        n1.start()
        choice = chosen(n1)
        assert (choice["node"], choice["loss"]) == ("n0", "likely")
        done = cli(n1, "cluster", "recover", "n0", "--accept-loss", "--yes")
        assert done.exit_code == 0, done.stderr
        for node in (n0, n1):
            until(node.ready, START_S, what=f"{node.name} serves")
            assert node.say("Q.PEEK", "mails", "m2")
        start([n2])  # it is replaced now
        assert all_in_sync(made)["primary"] == "n0"
        assert n2.say("Q.PEEK", "mails", "m1")
        assert cli(n2, "cluster", "confirm").exit_code == 0


def test_two_that_come_back_empty_are_no_cluster_beside_the_third(tmp_path: Path) -> None:
    with hosts(tmp_path) as made:
        n0, n1, n2 = made.values()
        n0.terminate()
        lose(tmp_path, n1, n2)
        n1.start()
        n2.start()
        choice = chosen(n1)
        assert (choice["view"], choice["loss"]) == (0, "likely")
        assert "n0: its node is not heard" in choice["others"]
        assert any("n0" in sentence for sentence in choice["missing"])
        done = cli(n1, "cluster", "recover", "n1", "--accept-loss", "--yes")
        assert done.exit_code != 0
        assert "is empty" in done.stderr
        n0.start()
        for node in (n1, n2):
            says(node, "n0: who answers under that name belongs to another cluster")
        says(n0, "n2: who answers under that name belongs to another cluster")
        told = n0.output.read_text().splitlines()
        assert any('"critical"' in line and "another cluster" in line for line in told)
        for node in made.values():

            def told(node: Node = node) -> bool:
                return "belongs to another cluster" in cli(node, "doctor").stdout

            until(told, START_S, what="the doctor says so")
        assert chosen(n1)["loss"] == "likely", "the third is heard, and still does not count"
        command = ("cluster", "recover", "n1", "--accept-loss", "--begin-empty", "--yes")
        assert cli(n1, *command).exit_code == 0
        for node in (n1, n2):
            until(node.ready, START_S, what=f"{node.name} serves")
        assert n1.status()["loss"] == "likely"
        # The third's data are those that are wanted.
        for node in (n1, n2):
            node.terminate()
            shutil.rmtree(tmp_path / node.name)
        found_raft_anew(tmp_path, [n0], made.values())
        whole(made, tmp_path)


def test_those_that_began_anew_are_kept_and_the_third_gives_up_its_data(tmp_path: Path) -> None:
    with hosts(tmp_path) as made:
        n0, n1, n2 = made.values()
        n0.terminate()
        lose(tmp_path, n1, n2)
        n1.start()
        n2.start()
        chosen(n2)
        command = ("cluster", "recover", "n2", "--accept-loss", "--begin-empty", "--yes")
        assert cli(n2, *command).exit_code == 0
        for node in (n1, n2):
            until(node.ready, START_S, what=f"{node.name} serves")
        put(n1, "m2")
        (tmp_path / "n0").rename(tmp_path / "n0.before")
        start([n0])
        all_in_sync(made)
        assert n0.say("Q.PEEK", "mails", "m2")
        with pytest.raises(ResponseError, match="NOTFOUND"):
            n0.say("Q.PEEK", "mails", "m1")


def test_an_older_store_does_not_take_over_from_two_that_came_back_empty(tmp_path: Path) -> None:
    with hosts(tmp_path) as made:
        n0, n1, n2 = made.values()
        n2.kill()
        until(lambda: n0.status()["in_sync"] == "n0 n1", START_S, what="n2 is out of the set")
        put(n0, "m2")
        n0.kill()
        n1.kill()
        disks = {node: tmp_path / node.name / "store" for node in (n0, n1)}
        for disk in disks.values():  # it is not mounted
            disk.rename(disk.with_name("away"))
        for node in made.values():
            node.start()
        choice = chosen(n2)
        assert (choice["node"], choice["loss"]) == ("n2", "likely")
        assert {"n0: empty", "n1: empty"} <= set(choice["others"])
        until(
            lambda: any("is its disk mounted?" in one.output.read_text() for one in made.values()),
            START_S,
            what="who leads says why nobody takes over",
        )
        assert n2.status()["primary"] != "n2"
        # It is mounted now.
        n0.terminate()
        shutil.rmtree(disks[n0])
        disks[n0].with_name("away").rename(disks[n0])
        n0.start()
        for node in made.values():
            until(node.ready, START_S, what=f"{node.name} serves")
        assert n2.say("Q.PEEK", "mails", "m2")
        assert n2.status()["primary"] == "n0"
