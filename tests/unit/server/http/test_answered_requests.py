"""What the HTTP door notes of the requests that it has answered."""

from __future__ import annotations

from support.doors.http_site import ALICE, site
from support.doors.recording_traffic import RecordingTraffic

from tidewarden.server.answered_requests import UNKNOWN


async def test_every_answer_is_noted_under_the_verb_of_its_route() -> None:
    traffic = RecordingTraffic()
    async with site(users=True, traffic=traffic) as subject:
        await subject.ask("GET", "/v1/status", headers=ALICE)
        await subject.ask("PUT", "/v1/tokens/p/a%2Fb", headers=ALICE, data=b"[]")
        await subject.ask("GET", "/health/live")
        await subject.ask("GET", "/v1/status")
        await subject.ask("GET", "/v1/nothing/of/the/kind", headers=ALICE)
        assert [(one.user, one.verb, one.name, one.failed) for one in traffic.notes] == [
            ("admin", "R.STATUS", b"", ""),
            ("admin", "T.PUT", b"p/a/b", "BADARG"),
            (None, "/health/live", b"", ""),
            (None, "R.STATUS", b"", "NOAUTH"),
            ("admin", UNKNOWN, b"", "NOTFOUND"),
        ]
        assert traffic.notes[1].bytes_in == len("[]")
        assert traffic.notes[1].bytes_out > 0
        assert traffic.notes[0].peer == "127.0.0.1"


async def test_a_scrape_is_no_list_of_queues() -> None:
    traffic = RecordingTraffic()
    async with site(users=True, traffic=traffic) as subject:
        assert (await subject.ask("GET", "/metrics", headers=ALICE))[0] == 200
        assert [one.verb for one in traffic.notes] == ["/metrics"]


async def test_what_waits_is_counted_among_the_waits() -> None:
    async with site() as subject:
        for wait_ms in (0, 50):
            body = {"wait_ms": wait_ms}
            assert (await subject.ask("POST", "/v1/queues/mail/take", json=body))[0] != 400
        _, text = await subject.ask("GET", "/metrics")
        assert 'request_wait_seconds_count{door="http",verb="Q.TAKE"} 1.0' in text
        assert 'request_duration_seconds_count{door="http",verb="Q.TAKE"} 1.0' in text
