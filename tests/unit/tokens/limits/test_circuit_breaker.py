"""What many answers say together."""

from __future__ import annotations

from tidewarden.tokens.limits.circuit_breaker import CircuitBreaker, OwnNetwork


def test_a_breaker_bears_some_silence_then_probes_and_any_answer_closes_it() -> None:
    breaker = CircuitBreaker(3)
    assert [breaker.note(False, 0) for _ in range(3)] == [False, False, True]
    assert not breaker.note(False, 0.5)  # One that was under way when it opened.
    assert breaker.allowed(0.5, 16, 0) == 0
    assert breaker.opens_in_s(0.5) == 0.5
    assert breaker.allowed(1, 16, 0) == 1  # A probe.
    assert breaker.allowed(1, 16, 1) == 0
    for at in range(1, 30):
        assert not breaker.note(False, 100 * at)
    assert breaker.opens_in_s(2900) == CircuitBreaker.MAX_S
    assert breaker.open
    breaker.note(True, 2930)
    assert breaker.allowed(2930, 16, 0) == 16
    assert [breaker.note(False, 3000) for _ in range(2)] == [False, False]


def test_when_no_provider_answers_the_fault_is_ours() -> None:
    weather = OwnNetwork()
    weather.note("a", False, 0)
    assert not weather.ours(0)  # One alone may well be down.
    weather.note("b", False, 1)
    assert weather.ours(1)
    weather.note("b", True, 2)
    assert not weather.ours(2)
    assert not weather.ours(100)  # What was long ago says nothing.
