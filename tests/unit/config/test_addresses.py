"""Where others are told to reach a node, as it may be written."""

from __future__ import annotations

import pytest

from tidewarden.config.addresses import address_fault, listened
from tidewarden.config.load import Cluster, Config, Node


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("10.0.0.5", "10.0.0.5:7420"),
        ("10.0.0.5:80", "10.0.0.5:80"),
        ("n0.example.org", "n0.example.org:7420"),
        ("n0:7430", "n0:7430"),
        ("::1", "[::1]:7420"),
        ("[fd00::5]:7430", "[fd00::5]:7430"),
        ("[fd00::5]", "[fd00::5]:7420"),
    ],
)
def test_a_host_or_a_host_and_its_port(written: str, address: str) -> None:
    assert address_fault(written) == ""
    assert Node(host="0.0.0.0", advertise=written).address == address


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        ("0.0.0.0", "names no host"),
        ("[::]:7420", "names no host"),
        (":7420", "names no host"),
        ("a b", "no host's name"),
        ("redis://n0:7420", "no host's name"),
        ("user@n0", "no host's name"),
        ("[n0]x:1", "the port 'x:1'"),
        ("n0:", "the port ''"),
        ("n0:0", "the port '0'"),
        ("n0:65532", "the port '65532'"),
        ("n0:x", "the port 'x'"),
    ],
)
def test_what_is_wrong_with_it(written: str, fault: str) -> None:
    found = address_fault(written)
    assert fault in found
    assert "; allowed: 'host' or 'host:port'" in found


def test_a_member_is_told_of_as_the_members_have_it() -> None:
    members = Cluster(members={"n0": "n0.local:7420", "n1": "n1.local:7420"})
    assert Config(cluster=members, node=Node(host="0.0.0.0")).address == "n0.local:7420"
    assert Config(cluster=members, node=Node(host="0.0.0.0", advertise="out:1")).address == "out:1"
    assert Config(cluster=members, node=Node(name="w0", host="10.0.0.9")).address == "10.0.0.9:7420"
    assert Config(node=Node(host="::")).address == ""


def test_every_address_of_a_host_is_that_of_both_kinds() -> None:
    assert listened("::") == ["0.0.0.0", "::"]
    assert [listened(host) for host in ("::1", "0.0.0.0", "n0.local")] == [
        "::1",
        "0.0.0.0",
        "n0.local",
    ]
