"""A token bucket of processor time."""

from __future__ import annotations

import pytest

from tidewarden.cpu_budget import CpuBudget


def test_what_is_saved_up_is_spent_and_comes_back_by_its_share() -> None:
    budget = CpuBudget(0.1, 0.5)
    assert budget.left_s(100.0) == 0.5
    budget.spend(0.5, 100.0)
    assert budget.left_s(100.0) == 0.0
    assert budget.left_s(101.0) == pytest.approx(0.1)
    assert budget.left_s(1000.0) == 0.5, "no more than that is saved up"


def test_who_spent_too_much_waits() -> None:
    budget = CpuBudget(0.1, 0.5)
    budget.spend(0.7, 0.0)
    assert budget.wait_s(0.0) == pytest.approx(2.0)
    assert budget.wait_s(0.0, 0.1) == pytest.approx(3.0)
    assert budget.wait_s(1.0) == pytest.approx(1.0)
    assert budget.wait_s(3.0) == 0.0


def test_over_a_long_time_it_is_the_share() -> None:
    budget, now, spent = CpuBudget(0.1, 0.5), 0.0, 0.0
    while now < 100.0:
        budget.spend(0.03, now)
        spent += 0.03
        now += budget.wait_s(now)
    assert spent <= 0.1 * 100 + 0.5 + 0.03
    assert spent >= 0.1 * 100


def test_what_is_given_back_is_there_again_and_no_more() -> None:
    budget = CpuBudget(0.1, 0.5)
    budget.spend(0.4, 0.0)
    budget.give_back(0.3)
    assert budget.left_s(0.0) == pytest.approx(0.4)
    budget.give_back(0.3)
    assert budget.left_s(0.0) == 0.5
