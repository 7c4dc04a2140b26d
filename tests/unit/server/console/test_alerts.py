"""The console's alerts are those of the rules for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from meta import alert_rules
from support.inspect import since_of_alerts

from tidewarden.config.rights import ALL, Rights
from tidewarden.server.console.alerts import CASES_MAX, CONDITIONS, AlertFigures, Alerts
from tidewarden.server.console.history import History
from tidewarden.server.console.overview import alerts_of

SLOT = 10_000
WELL: dict[str, Any] = {
    "store_up": 1,
    "stores_voting": 3,
    "stores_in_sync": 3,
    "certificate_expires_ms": 40 * 86_400_000,
}


def seconds(text: str) -> int:
    return int(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]]


def history(**figures: tuple[float, float]) -> History:
    """Each figure a minute ago, and now."""
    made = History()
    for name, (before, now) in figures.items():
        made.put(SLOT - 6, {name: before})
        made.put(SLOT, {name: now})
    return made


def figures(**changes: Any) -> AlertFigures:
    seen: dict[str, Any] = {
        "node": "n0",
        "slot": SLOT,
        "now_s": 0.0,
        "stats": WELL,
        "own": history(store_clock_steps_total=(3, 3)),
        "users": {},
        "webhooks": {},
        "queues": {"mails": history(buried=(5, 0))},
        "accounts": {"shop": history(dead=(5, 4))},
        "standing": {"shop": "answers"},
        "unreadable": 0,
        "leader": "n0",
        "silent": {},
        "buried": {},
    }
    return AlertFigures(**{**seen, **changes})


def stats(**changes: Any) -> Mapping[str, Any]:
    return {"stats": {**WELL, **changes}}


WRONG: dict[str, Mapping[str, Any]] = {
    "TidewardenNodeDown": {"silent": {"n1": 5.0}},
    "TidewardenStoreAway": stats(store_up=0),
    "TidewardenStoreRefuses": stats(store_refuses=1),
    "TidewardenStoreFull": stats(store_full=1),
    "TidewardenStoreClockStepped": {"own": history(store_clock_steps_total=(3, 4))},
    "TidewardenStoresBelowMajority": stats(stores_in_sync=1),
    "TidewardenStoreNotInSync": stats(stores_in_sync=2),
    "TidewardenStoreLoss": stats(store_loss=1),
    "TidewardenStoreFailovers": {"own": history(store_failovers_total=(1, 5))},
    "TidewardenStoreProblems": stats(store_problems=2),
    "TidewardenNoLeader": {"leader": ""},
    "TidewardenLeaderStandsStill": stats(leader_duty_late_seconds={"sweep": 31.0, "reaper": 1}),
    "TidewardenDurabilityMissed": {"own": history(commit_missed_total=(0, 1))},
    "TidewardenTasksBuried": {"queues": {"mails": history(buried=(5, 6))}},
    "TidewardenAccounts": {"accounts": {"shop": history(dead=(5, 6))}},
    "TidewardenProvider": {"standing": {"shop": "silent"}},
    "TidewardenAnswersUnreadable": {"unreadable": 1},
    "TidewardenWebhooks": {"webhooks": {"hook": history(failed=(0, 1))}},
    "TidewardenLogins": {"own": history(logins_refused_total=(0, 40))},
    "TidewardenDenied": {"users": {"alice": history(denied=(0, 40))}},
    "TidewardenCertificate": stats(certificate_expires_ms=6 * 86_400_000),
}
"""For each alert what makes it, and it alone, fire; but where one implies another."""
IMPLIED = {"TidewardenStoresBelowMajority": "TidewardenStoreNotInSync"}


def test_the_rules_for_prometheus_are_made_of_these() -> None:
    again = "python -m tests.meta.alert_rules"
    assert alert_rules.FILE.read_text("utf-8") == alert_rules.rules(), again
    groups = yaml.safe_load(alert_rules.rules())["groups"]
    there = {rule["alert"]: rule for group in groups for rule in group["rules"]}
    assert set(WRONG) == set(there)
    for one in CONDITIONS:
        rule = there[one.name]
        assert (rule["expr"], seconds(rule.get("for", "0s"))) == (one.trigger.expr, one.for_s)
        assert "$labels.instance" in rule["annotations"]["summary"] or "{node}" not in one.summary


def test_nothing_fires_where_all_is_well() -> None:
    subject = Alerts()
    for now_ms in (0, 10**7):
        subject.judge(figures(), now_ms)
        assert subject.firing == []


@pytest.mark.parametrize("name", sorted(WRONG))
def test_each_fires_after_its_time_and_ends(name: str) -> None:
    for_s = next(one.for_s for one in CONDITIONS if one.name == name)
    subject, wrong = Alerts(), figures(**WRONG[name])
    expected = {name, IMPLIED.get(name, name)}
    subject.judge(wrong, 50_000)
    assert bool({one.alert.name for one in subject.firing} & {name}) is (for_s == 0)
    subject.judge(wrong, 50_000 + for_s * 1000)
    firing = {one.alert.name for one in subject.firing}
    assert name in firing <= expected
    one = next(one for one in subject.firing if one.alert.name == name)
    assert one.alert.since_ms == 50_000
    assert one.alert.summary.endswith(".")
    assert one.alert.action.endswith((".", "?"))
    assert "{" not in one.alert.summary
    subject.judge(figures(), 60_000 + for_s * 1000)
    assert subject.firing == []
    subject.judge(wrong, 10**9)
    subject.judge(wrong, 10**9 + for_s * 1000)
    assert {one.alert.since_ms for one in subject.firing if one.alert.name == name} == {10**9}


def test_tasks_that_were_buried_before_anybody_looked_are_told_too() -> None:
    subject = Alerts()
    old = history(buried=(820, 820))
    old.put(SLOT - 91, {"buried": 820.0})
    subject.judge(figures(queues={"mails": old}), 1000)
    (one,) = subject.firing
    assert one.alert.summary == "820 tasks of mails are buried, 0 more than 15 minutes ago."
    subject.judge(figures(queues={"mails": history(buried=(820, 0))}), 2000)
    assert subject.firing == []


def test_what_was_buried_since_the_figures_began_is_not_called_old() -> None:
    subject, young = Alerts(), History()
    young.put(SLOT, {"buried": 700.0})
    subject.judge(figures(queues={"mails": young}), 1000)
    (one,) = subject.firing
    assert one.alert.summary == "700 tasks of mails are buried."


def test_of_thousands_that_go_wrong_so_many_are_told() -> None:
    subject = Alerts()
    wrong = {f"q{number}": history(buried=(0, 1)) for number in range(10 * CASES_MAX)}
    for now_ms in (0, 1000):
        subject.judge(figures(queues=wrong), now_ms)
        assert len(subject.firing) == len(since_of_alerts(subject)) == CASES_MAX


def test_what_goes_wrong_with_one_users_queues_hides_no_other_alert() -> None:
    subject = Alerts()
    wrong = {f"q{number}": history(buried=(0, 1)) for number in range(CASES_MAX)}
    for now_ms in (0, 1000):
        subject.judge(figures(queues=wrong, **WRONG["TidewardenAnswersUnreadable"]), now_ms)
    assert "TidewardenAnswersUnreadable" in {one.alert.name for one in subject.firing}


def test_of_queues_and_providers_those_are_told_who_may_see_them() -> None:
    subject = Alerts()
    wrong = {**WRONG["TidewardenTasksBuried"], **WRONG["TidewardenAccounts"], "unreadable": 1}
    subject.judge(figures(**wrong), 0)
    told = {
        rights: {one.name for one in alerts_of(subject.firing, rights)}
        for rights in (
            ALL,
            Rights(("take:mails",)),
            Rights(("token:read:shop/*",)),
            Rights(("token:read:shop/a*",)),  # the numbers are those of all accounts
            Rights(()),
        )
    }
    general = "TidewardenAnswersUnreadable"
    assert list(told.values()) == [
        {"TidewardenTasksBuried", "TidewardenAccounts", general},
        {"TidewardenTasksBuried", general},
        {"TidewardenAccounts", general},
        {general},
        {general},
    ]


def test_who_does_not_administer_hears_of_no_user_and_no_webhook() -> None:
    subject = Alerts()
    of_files = [name for name in WRONG if {"webhooks", "users"} & WRONG[name].keys()]
    assert len(of_files) == 2
    wrong = figures(**{key: value for name in of_files for key, value in WRONG[name].items()})
    for now_ms in (0, 10**9):
        subject.judge(wrong, now_ms)
    told = {one.name for one in alerts_of(subject.firing, ALL)}
    assert set(of_files) <= told
    assert told == {one.name for one in alerts_of(subject.firing, Rights(("admin",)))}
    for rights in (Rights(()), Rights(("stats", "take")), Rights(("admin:mine*",))):
        assert not {one.name for one in alerts_of(subject.firing, rights)} & set(of_files)
