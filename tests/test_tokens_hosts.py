"""A host's rate: shared by its providers, the lower one counts."""

from __future__ import annotations

from tidewarden.config import Provider
from tidewarden.tokens.hosts import Hosts, host_of


def test_a_host_is_asked_no_more_than_it_may_be() -> None:
    hosts = Hosts()
    one = Provider(name="a", token_url="https://As.example/t", host_rate=20.0)
    two = Provider(name="b", issuer="https://as.example/tenant", host_rate=10.0)
    free = Provider(name="c", token_url="https://other.example/t")
    for provider in (one, two, free):
        hosts.add(provider)
    assert host_of(one) == host_of(two) == "as.example"
    assert hosts.ask(free, 500, 0.0) == (500, 0.0)
    sent, now = 0, 100.0
    for turn in range(50):
        granted, wait_s = hosts.ask((one, two)[turn % 2], 7, now)
        sent += granted
        assert (granted > 0) != (wait_s > 0)
        now += 0.1
    assert 50 <= sent <= 60


def test_what_was_not_sent_is_given_back() -> None:
    hosts = Hosts()
    some = Provider(name="a", token_url="https://as.example/t", host_rate=10.0)
    hosts.add(some)
    assert hosts.ask(some, 50, 100.0) == (10, 0.0)
    hosts.give_back(some, 4)
    assert hosts.ask(some, 50, 100.0)[0] == 4


def test_less_than_one_a_second() -> None:
    hosts = Hosts()
    slow = Provider(name="a", token_url="https://as.example/t", host_rate=0.1)
    hosts.add(slow)
    assert hosts.ask(slow, 5, 100.0)[0] == 1
    granted, wait_s = hosts.ask(slow, 5, 100.0)
    assert (granted, round(wait_s, 3)) == (0, 10.0)
    assert hosts.ask(slow, 5, 110.0)[0] == 1


def test_nodes_share_a_host_and_whoever_stays_has_more() -> None:
    living = 4
    hosts = Hosts(lambda: living)
    some = Provider(name="a", token_url="https://as.example/t", host_rate=40.0)
    hosts.add(some)
    assert hosts.ask(some, 50, 100.0)[0] == 10
    assert sum(hosts.ask(some, 1, 100.1 + turn / 100)[0] for turn in range(100)) in (10, 11)
    living = 2
    assert sum(hosts.ask(some, 1, 102.0 + turn / 100)[0] for turn in range(200)) in range(39, 60)
    living = 0  # not heard yet
    assert hosts.ask(some, 100, 200.0)[0] == 40
