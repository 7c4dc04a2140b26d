"""When a node goes by way of another one to the primary, when it goes itself again, and to whom."""

from __future__ import annotations

from tidewarden.cluster.replication.store_report import StoreReport
from tidewarden.cluster.replication.way_around import WayAround, WayTimes, primary_told
from tidewarden.raft.store_facts import StoreFacts, StoreMember

TIMES = WayTimes()
STEP_S = 0.1


class Scene:
    """n0 looks; n1's store is the primary; n2 is a third node."""

    def __init__(self) -> None:
        self.way = WayAround("n0", TIMES)
        self.now_s = 100.0
        self.silence = {"n0": 0.0, "n1": 0.1, "n2": 0.1}
        self.primary, self.leads = "n1", False

    def look(self, seconds: float = 0.0) -> bool:
        self.now_s += seconds
        return self.way.look(self.now_s, self.primary, self.silence, leads=self.leads)

    def heard(self, seconds: float) -> float:
        """So long n1 is heard; return after how long it is gone to itself, or ``seconds``."""
        self.silence["n1"] = 0.1
        for step in range(round(seconds / STEP_S)):
            if not self.look(STEP_S):
                return step * STEP_S
        return seconds

    def cut(self) -> None:
        self.silence["n1"] = TIMES.silent_s + 0.1


def test_a_primary_that_is_heard_is_gone_to_itself() -> None:
    scene = Scene()
    assert not scene.look()
    scene.silence["n1"] = TIMES.silent_s
    assert not scene.look(), "not silent for long enough"


def test_one_that_is_silent_is_gone_around_while_another_is_heard() -> None:
    scene = Scene()
    scene.cut()
    scene.silence["n2"] = TIMES.near_s + 0.1
    assert not scene.look(), "nobody could carry"
    scene.silence["n2"] = 0.1
    assert scene.look()
    assert scene.way.carriers(scene.silence) == {"n2"}
    scene.silence["n2"] = 9.0
    assert scene.look(), "nobody else can do better"
    assert not scene.way.carriers(scene.silence)


def test_one_that_was_never_heard_is_gone_around_a_while_after_the_start() -> None:
    scene = Scene()
    del scene.silence["n1"]
    assert not scene.look(), "its first word may be on its way"
    assert not scene.look(TIMES.silent_s - STEP_S)
    assert scene.look(2 * STEP_S)


def test_the_leader_of_raft_replaces_it_instead() -> None:
    scene = Scene()
    scene.cut()
    scene.leads = True
    assert not scene.look()
    scene.leads = False
    assert scene.look()
    scene.leads = True
    assert not scene.look()


def test_the_own_store_and_nobodys_are_not_gone_around() -> None:
    scene = Scene()
    scene.silence["n0"] = 9.0
    for scene.primary in ("n0", ""):
        assert not scene.look()


def test_it_is_given_back_once_the_primary_was_heard_for_long_enough() -> None:
    scene = Scene()
    scene.cut()
    assert scene.look()
    assert scene.heard(TIMES.back_s - 1) == TIMES.back_s - 1
    scene.silence["n1"] = TIMES.near_s + 0.1  # not for long, and yet it begins anew
    assert scene.look(STEP_S)
    assert TIMES.back_s - 1 < scene.heard(2 * TIMES.back_s) < TIMES.back_s + 1


def test_a_link_that_comes_and_goes_is_trusted_later_each_time() -> None:
    scene = Scene()
    waited_s = []
    for _ in range(6):
        scene.cut()
        assert scene.look()
        waited_s.append(scene.heard(2 * TIMES.back_s_max))
    assert [round(one) for one in waited_s] == [5, 10, 20, 40, 80, 80]
    scene.heard(0.0)
    scene.now_s += TIMES.early_s + 1
    scene.cut()
    assert scene.look()
    assert round(scene.heard(2 * TIMES.back_s_max)) == TIMES.back_s


def test_another_primary_that_is_heard_is_gone_to_itself_at_once() -> None:
    scene = Scene()
    scene.cut()
    assert scene.look()
    scene.primary = "n2"
    assert not scene.look()
    scene.primary = "n1"
    assert scene.look(), "the first is as silent as before"


FACTS = StoreFacts(2, "n1", "b", frozenset({StoreMember("n1", "b"), StoreMember("n2", "c")}), 7)


def test_reports_of_the_view_that_is_known_tell_nothing_new() -> None:
    reports = {
        "n1": StoreReport(incarnation="b", serves_view=2, view=2),
        "n2": StoreReport(incarnation="c", follows="n1.b", view=2),
        "n0": StoreReport(),
    }
    assert primary_told(FACTS, reports) is None


def test_a_newer_primary_is_known_by_its_own_word_and_by_those_that_follow_it() -> None:
    own = {"n2": StoreReport(incarnation="c", serves_view=3, view=3)}
    assert primary_told(FACTS, own) == (3, StoreMember("n2", "c"))
    follower = {"n3": StoreReport(incarnation="d", follows="n2.c", view=4)}
    assert primary_told(FACTS, own | follower) == (4, StoreMember("n2", "c"))


def test_data_of_a_newer_view_that_follow_nobody_tell_of_no_primary() -> None:
    assert primary_told(FACTS, {"n2": StoreReport(incarnation="c", view=3)}) is None
