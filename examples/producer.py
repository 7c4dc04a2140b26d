"""
Put tasks in several ways: due at once, due later, with a deadline, and many together.

If a worker is running (see worker_app.py), it also prints a result.

    tidewarden up                      # in one terminal
    python examples/producer.py        # in another, in the same folder
"""

from tidewarden.client import Client

with Client() as client:
    mails = client.queue("mails")

    # With an id of your own the put is safe to repeat, for you and for the SDK.
    print("put", mails.put_json({"to": "ada@example.com"}, id="welcome-ada"))
    print("put", mails.put_json({"to": "bob@example.com"}, delay_ms=500))
    print(
        "put",
        mails.put_json(
            {"to": "eve@example.com"}, within_ms=60_000, priority=10, attempts=3, backoff_ms=200
        ),
    )

    reports = client.queue("reports")
    ids = reports.put_many([f"page {number}" for number in range(1, 21)])
    print("put", len(ids), "reports")

    ending = reports.wait(ids[0], timeout_ms=2_000)
    if ending.word == "done":
        print("the first report is done:", ending.result.decode())
    else:
        print("nobody has made the first report yet:", ending.word)
