"""Retry-After, as servers write it and as they should not."""

from __future__ import annotations

import pytest

from tidewarden.tokens.provider.retry_after_header import retry_after

NOW_MS = 1_700_000_000_000  # Tue, 14 Nov 2023 22:13:20 GMT


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "3600"}, 3600),
        ({"retry-after": "86400"}, 86_400),
        ({"retry-after": "172800"}, 86_400),  # Capped.
        ({"retry-after": "Tue, 14 Nov 2023 23:43:20 GMT"}, 5400),
        ({"retry-after": "Tue, 14 Nov 2023 22:13:50 GMT"}, 30),
        ({"retry-after": "Tue, 14 Nov 2023 22:00:00 GMT"}, 0),
        # By the provider's own clock, which is an hour ahead of ours.
        (
            {
                "retry-after": "Tue, 14 Nov 2023 23:13:50 GMT",
                "date": "Tue, 14 Nov 2023 23:13:20 GMT",
            },
            30,
        ),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({}, None),
        ({"retry-after": "99999999999999"}, 86_400),
        ({"retry-after": "9" * 5000}, 86_400),
        ({"retry-after": "1.5"}, 1.5),  # RFC 9110 has whole ones alone; it is meant all the same.
        ({"retry-after": "-5"}, None),
        ({"retry-after": "Tue, 14 Nov 2023 22:13:50 GMT", "date": "some day"}, 30.0),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}, 86_400),
    ],
)
def test_retry_after_in_both_forms(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, NOW_MS) == seconds
