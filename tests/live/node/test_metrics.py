"""A node of three processes as a real Prometheus sees it, by the rules of ``examples/``."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.cluster.harness import Node, until
from support.cluster.node_processes import PROCESSES, everywhere, serving_processes

from benchmarks.ports import free_ports
from tidewarden.histograms import KINDS
from tidewarden.server.http.metrics import HELP

EXAMPLES = Path(__file__).parents[3] / "examples"
RULES = ("alerts", "histograms")


@pytest.fixture(scope="module")
def n0(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One node, which has put, taken and acknowledged tasks in each of its processes."""
    with serving_processes(request, tmp_path_factory.mktemp("metrics")) as cluster:
        node = cluster.nodes["n0"]
        with everywhere(node) as clients:
            for client in clients:
                client.execute_command("Q.PUT", "mail", "x")
                (row,) = client.execute_command("Q.TAKE", "WAIT", 5000, "FROM", "mail")
                client.execute_command("Q.ACK", "mail", row[1], row[2])
            asked = len(clients)
        until(lambda: counted(node, "request_duration_seconds", 'verb="Q.PUT"') >= asked)
        yield node


def counted(node: Node, name: str, labels: str) -> float:
    """How many durations the series of these labels have."""
    found = re.findall(
        rf"^tidewarden_{name}_count{{([^}}]*)}} (\S+)$", node.http("/metrics").text, re.MULTILINE
    )
    return sum(float(value) for given, value in found if labels in given)


def test_each_process_adds_to_the_histograms(n0: Node) -> None:
    puts = counted(n0, "request_duration_seconds", 'door="resp",verb="Q.PUT"')
    assert puts >= PROCESSES
    assert counted(n0, "request_wait_seconds", 'verb="Q.TAKE"') == puts
    until(lambda: counted(n0, "task_held_seconds", 'how="ack"') == puts)
    assert counted(n0, "task_lateness_seconds", 'queues="user"') == puts
    assert counted(n0, "store_script_seconds", 'script="queue.ack"') >= 1


# What a lone node on its embedded store, without providers and troubles, has no figures of.
OF_OTHERS = re.compile(
    r"tidewarden_(tokens_|token_|webhook_|node_store(s_|_(loss|problems|failovers|behind))"
    r"|node_certificate|resp_denied|store_commit|store_failover|election_"
    r"|node_leader_duty|queue_(fail|expired)_total)"
)


def test_what_dashboard_and_alerts_name_is_in_the_metrics(n0: Node) -> None:
    told = set(re.findall(r"^(tidewarden_\w+)", n0.http("/metrics").text, re.MULTILINE))
    texts = [path.read_text() for path in EXAMPLES.rglob("*") if path.suffix in (".json", ".yml")]
    named = {name for text in texts for name in re.findall(r"\btidewarden_[a-z_]+\w", text)}
    assert len(named) > 40
    missing = {name for name in named - told if not OF_OTHERS.match(name)}
    assert not missing


def test_every_metric_of_a_node_is_described(n0: Node) -> None:
    """One without a line in HELP would be described by its own name."""
    told = re.findall(r"^# TYPE (\S+)", n0.http("/metrics").text, re.MULTILINE)
    assert len(told) > 60
    histograms = {f"tidewarden_{name}" for name in KINDS}
    assert not {name for name in told if name not in HELP and name not in histograms}


@pytest.fixture(scope="module")
def prometheus(n0: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Debian's Prometheus, which asks the node each half second."""
    if (program := shutil.which("prometheus")) is None:
        pytest.skip("prometheus is not here (Debian: prometheus)")
    folder = tmp_path_factory.mktemp("prometheus")
    port = free_ports(1)
    asks = {
        "job_name": "tidewarden",
        "authorization": {"credentials": f"admin:{n0.secret}"},
        "static_configs": [{"targets": [f"127.0.0.1:{n0.base_port + 1}"]}],
    }
    often = {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"}
    config: dict[str, Any] = {
        "global": often,
        "rule_files": [str(EXAMPLES / "prometheus" / f"{name}.yml") for name in RULES],
        "scrape_configs": [asks],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    argv = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "output.log").open("wb") as output:
        process = subprocess.Popen(argv, stdout=output, stderr=subprocess.STDOUT)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            until(lambda: answers(client), what="Prometheus serves")
            yield client
    finally:
        process.terminate()
        process.wait(30)


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/-/ready").status_code == 200
    except httpx.TransportError:
        return False


def value(client: httpx.Client, query: str) -> float | None:
    """What Prometheus answers to a query of one number; None: nothing yet."""
    found = client.get("/api/v1/query", params={"query": query}).json()["data"]["result"]
    return float(found[0]["value"][1]) if found else None


def test_prometheus_reads_the_histograms_and_the_rules(n0: Node, prometheus: httpx.Client) -> None:
    until(lambda: value(prometheus, 'up{job="tidewarden"}') == 1, what="the node is scraped")
    name = "tidewarden_request_duration_seconds"
    assert value(prometheus, f'sum({name}_count{{verb="Q.PUT"}})') == counted(
        n0, "request_duration_seconds", 'verb="Q.PUT"'
    )
    late = value(
        prometheus,
        "histogram_quantile(0.99, sum by (le) (tidewarden_task_lateness_seconds_bucket))",
    )
    assert late is not None
    assert 0 < late < 86_400
    (target,) = prometheus.get("/api/v1/targets").json()["data"]["activeTargets"]
    assert target["lastError"] == ""
    (told,) = prometheus.get("/api/v1/metadata", params={"metric": name}).json()["data"][name]
    assert told["type"] == "histogram"
    until(lambda: all(rule["health"] == "ok" for rule in rules(prometheus)))
    assert [rule["name"] for rule in rules(prometheus) if rule["state"] == "firing"] == []


def rules(client: httpx.Client) -> list[dict[str, Any]]:
    groups = client.get("/api/v1/rules").json()["data"]["groups"]
    assert len(groups) == len(RULES)
    return [rule for group in groups for rule in group["rules"]]
