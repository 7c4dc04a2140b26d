"""
The unit files and the compose file of ``examples/``, and the manifests for Kubernetes: they are
read by their own readers, and fit our configuration.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from support.manifests import KUBERNETES, manifest, manifests

from tidewarden.config.load import check_secret, load
from tidewarden.errors import ConfigError
from tidewarden.histograms import KINDS, LONG_S, QUICK_S
from tidewarden.node.daemon import DRAIN_S, HAND_OVER_S
from tidewarden.node.os_process import END_S
from tidewarden.server.http.metrics import HELP
from tidewarden.store.embedded.store_host import STOP_GRACE_S

FIGURES = {
    *HELP,
    *(f"tidewarden_{name}_{part}" for name in KINDS for part in ("bucket", "sum", "count")),
}
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["tidewarden", "tidewarden-store", "tidewarden-up"])
def test_systemd_takes_the_units(name: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    text = (EXAMPLES / "systemd" / f"{name}.service").read_text()
    unit = tmp_path / f"{name}.service"
    unit.write_text(
        text.replace("/opt/tidewarden/bin/tidewarden", f'"{sys.executable}"')
    )  # it looks whether the program is there
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_unit_gives_a_node_the_time_that_its_end_takes() -> None:
    text = (EXAMPLES / "systemd" / "tidewarden.service").read_text()
    found = re.search(r"TimeoutStopSec=(\d+)", text)
    assert found is not None
    assert int(found[1]) > HAND_OVER_S + DRAIN_S + 20


def test_a_unit_gives_a_store_the_time_that_its_end_takes() -> None:
    text = (EXAMPLES / "systemd" / "tidewarden-store.service").read_text()
    found = re.search(r"TimeoutStopSec=(\d+)", text)
    assert found is not None
    assert int(found[1]) > END_S > STOP_GRACE_S


def test_the_units_of_a_node_and_its_store_end_and_restart_each_alone() -> None:
    """A node that is restarted must leave the store as it is, and the other way round."""
    units = {
        name: (EXAMPLES / "systemd" / f"{name}.service").read_text()
        for name in ("tidewarden", "tidewarden-store")
    }
    for text in units.values():
        assert not re.search(r"^(Requires|BindsTo|PartOf|Upholds)=", text, re.MULTILINE)
    # the store first, so that the node finds it and does not run it itself
    assert re.search(r"^After=.*\btidewarden-store\.service", units["tidewarden"], re.MULTILINE)
    hardened = [text[text.index("NoNewPrivileges") :] for text in units.values()]
    assert hardened[0] == hardened[1]


@pytest.mark.parametrize("name", ["n0", "n1", "n2"])
def test_the_compose_files_nodes_have_a_good_configuration(name: str, tmp_path: Path) -> None:
    compose = yaml.safe_load((EXAMPLES / "compose.yaml").read_text())
    node, store = (compose["services"][one] for one in (name, f"{name}-store"))
    (tmp_path / "key").write_text("a secret")
    for service in (node, store):
        mounted = service["volumes"][0].split(":")[0]
        for secret in service["secrets"]:
            assert secret in compose["secrets"]
        config = load(
            str(EXAMPLES / mounted),
            service["environment"],
            {"cluster.secret_file": str(tmp_path / "key")},
        )
        assert config.node.name == name
        assert config.replicated
        assert service["command"][0] == ("node" if service is node else "store")
        assert check_secret("change-me", config.users[0].secret_hash)
    assert node["volumes"] == store["volumes"]
    assert {volume.split(":")[0] for volume in node["volumes"][1:]} <= compose["volumes"].keys()
    # both are reached under the name that the members have
    assert config.cluster.members[name] == f"{name}:7420"
    assert store["networks"]["default"]["aliases"] == [name]
    assert node["network_mode"] == node["pid"] == f"service:{name}-store"
    assert list(node["depends_on"]) == [f"{name}-store"]


def test_kubernetes_takes_the_manifests() -> None:
    """By the schemas of its API, in which no field is unknown."""
    assert len(manifests()) == 7
    for one in manifests():
        kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)
    broken = manifest("StatefulSet")
    broken["spec"]["podManagementPolicies"] = "Parallel"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, kubernetes_validate.latest_version(), strict=True)


def test_pods_find_each_other_and_end_one_at_a_time() -> None:
    nodes, policy = manifest("Service", "tidewarden-nodes")["spec"], manifest("NetworkPolicy")
    pods = manifest("StatefulSet")["spec"]
    # None could become ready if it were found only then, or started only after another.
    assert (nodes["clusterIP"], nodes["publishNotReadyAddresses"]) == ("None", True)
    assert (pods["serviceName"], pods["podManagementPolicy"]) == ("tidewarden-nodes", "Parallel")
    assert manifest("PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    labels = pods["template"]["metadata"]["labels"]
    for selector in (
        nodes["selector"],
        manifest("Service")["spec"]["selector"],
        pods["selector"]["matchLabels"],
        manifest("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        policy["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector == labels
    assert {one["metadata"]["namespace"] for one in manifests() if one["kind"] != "Namespace"} == {
        manifest("Namespace")["metadata"]["name"]
    }
    spec = pods["template"]["spec"]
    (container,) = spec["containers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert ports == {"resp": 7420, "http": 7421, "raft": 7422, "store": 7423}
    assert {one["targetPort"] for one in nodes["ports"]} == set(ports)
    for probe, path in (("startup", "live"), ("liveness", "live"), ("readiness", "ready")):
        asked = container[f"{probe}Probe"]["httpGet"]
        assert (asked["path"], asked["port"]) == (f"/health/{path}", "http")
    assert spec["terminationGracePeriodSeconds"] > HAND_OVER_S + DRAIN_S + 20
    assert spec["enableServiceLinks"] is False


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_pods_of_kubernetes_have_a_good_configuration(number: int, tmp_path: Path) -> None:
    text = manifest("ConfigMap")["data"]["config.toml"]
    hashed = "sha256$" + "0" * 64
    assert text.count('secret_hash = "REPLACE') == 1
    filled = re.sub(r'(secret_hash = )".*"', rf'\1"{hashed}"', text)
    keys = tmp_path / "keys"
    keys.mkdir()
    told = (KUBERNETES / "tidewarden.yaml").read_text("utf-8")
    for name in ("cluster.key", "vault.key"):
        assert f"--from-literal={name}=" in told
        (keys / name).write_text("a secret")
    (tmp_path / "config.toml").write_text(filled.replace("/etc/tidewarden/keys", str(keys)))
    pods = manifest("StatefulSet")["spec"]
    (container,) = pods["template"]["spec"]["containers"]
    pod = f"tidewarden-{number}"
    environ = {one["name"]: one.get("value", pod) for one in container["env"]}
    config = load(str(tmp_path / "config.toml"), environ, {})
    assert config.node.name == pod
    assert config.replicated
    assert len(config.cluster.members) == pods["replicas"] == 3
    where = f"{pod}.{pods['serviceName']}.tidewarden.svc:7420"
    assert config.cluster.members[pod] == where
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert config.node.data_dir == mounts["data"]
    assert text.count(mounts["keys"]) == 2
    assert container["args"][-1] == mounts["config"]
    (tmp_path / "config.toml").write_text(text.replace("/etc/tidewarden/keys", str(keys)))
    with pytest.raises(ConfigError, match="secret_hash"):  # as it stands it starts nothing
        load(str(tmp_path / "config.toml"), environ, {})


def alerts() -> list[dict[str, Any]]:
    """The rules of both files."""
    files = (EXAMPLES / "prometheus" / f"{name}.yml" for name in ("alerts", "histograms"))
    groups = [group for path in files for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def test_the_alerts_are_about_figures_that_there_are() -> None:
    for rule in alerts():
        names = set(re.findall(r"tidewarden_\w+", rule["expr"]))
        assert names <= FIGURES, rule["alert"]
        assert names or "up{" in rule["expr"]
        assert rule["annotations"]["summary"]


@pytest.mark.thorough
def test_each_alert_fires_once_in_its_test() -> None:
    folder = EXAMPLES / "prometheus"
    tests = yaml.safe_load((folder / "alerts_test.yml").read_text())["tests"]
    assert [test["name"] for test in tests] == [rule["alert"] for rule in alerts()]
    for test in tests:
        silent, fires = test["promql_expr_test"]
        assert f'"{test["name"]}"' in silent["expr"] == fires["expr"]
        assert "exp_samples" not in silent
        assert fires["exp_samples"] == [{"labels": "{}", "value": 1}]
    promtool("test", "rules", folder / "alerts_test.yml")


def test_the_dashboard_asks_for_figures_that_there_are(tmp_path: Path) -> None:
    board = json.loads((EXAMPLES / "grafana" / "tidewarden.json").read_text())
    asked = [query["expr"] for panel in board["panels"] for query in panel.get("targets", ())]
    asked += [one["expr"] for one in board["annotations"]["list"]]
    assert len(asked) > 40
    for query in asked:
        names = set(re.findall(r"tidewarden_\w+", query))
        assert names <= FIGURES
        assert names or "up{" in query or "ALERTS{" in query
    filled = [re.sub(r"\$__(rate_)?interval", "5m", query) for query in asked]
    rules = [{"record": f"panel:{number}", "expr": one} for number, one in enumerate(filled)]
    path = tmp_path / "panels.yml"
    path.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", path)


def test_the_page_of_metrics_has_every_histogram_as_it_is() -> None:
    text = (EXAMPLES.parent / "docs" / "metrics.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `tidewarden_(\w+)` \| (.*) \|$", text, re.MULTILINE))
    assert rows.keys() == KINDS.keys()
    for name, kind in KINDS.items():
        meaning, labels, buckets = rows[name].split(" | ")
        assert meaning == f"{kind.help}."
        assert re.findall(r"`(\w+)`", labels) == list(kind.labels)
        assert buckets == ("quick" if kind.bounds == QUICK_S else "long")
    for word, bounds in (("quick", QUICK_S), ("long", LONG_S)):
        (told,) = re.findall(rf"^- {word}: ([^:]*)\.$", text, re.MULTILINE)
        assert [float(one) for one in told.split(",")] == list(bounds)


def promtool(*words: str | Path) -> None:
    if (program := shutil.which("promtool")) is None:
        pytest.skip("promtool is not here (Debian: prometheus)")
    subprocess.run([program, *map(str, words)], check=True, timeout=60)
