"""
An authorization server that is not ours: django-oauth-toolkit, in one process, on SQLite.

Started by the ``dot`` fixture. Prints one line of JSON when it serves (token_url, client_id,
client_secret, seeds) and ends when its standard input closes. Around the library, in a middleware
of ours: counters and faults, at ``GET /admin/stats`` and ``POST /admin/fault`` (JSON; see
:data:`FAULT`); ``POST /admin/end`` refuses an access token before its time.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import socketserver
import sys
import threading
import time
import uuid
from collections import Counter, defaultdict
from datetime import timedelta
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import django
from django.conf import settings

CLIENT_ID = "c0"
# on purpose: HTTP Basic has to carry its form-encoded form (RFC 6749, 2.3.1)
CLIENT_SECRET = "s3cr%t+:/"
SCOPE = "mail files"
APPS = ["django.contrib.auth", "django.contrib.contenttypes", "oauth2_provider"]
# kind: delay (before processing; over when the fault is lifted)
# | drop (processed, then the connection is cut) | status | html (200); "" for none.
# every: each n-th token request is hit; times: so many in all, 0 without end.
FAULT: dict[str, Any] = {
    "kind": "",
    "every": 1,
    "times": 0,
    "delay_ms": 0,
    "status": 503,
    "retry_after": None,
}


class Ledger:
    """What was asked and answered, by account and generation; and the fault that is set."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.known: dict[str, tuple[str, int]] = {}  # refresh token -> account, generation
        self.generation: dict[str, int] = {}
        self.requests: dict[str, Counter[int]] = defaultdict(Counter)
        self.refreshes: dict[str, Counter[int]] = defaultdict(Counter)
        self.answers: Counter[str] = Counter()
        self.reuse = 0
        self.faults = 0
        self.hits = 0
        self.fault = dict(FAULT)
        self.lifted = threading.Event()
        """No fault is set, or none any more: who is delayed goes on."""

    def seed(self, account: str, token: str) -> None:
        self.known[token] = (account, 0)
        self.generation[account] = 0

    def asked(self, token: str) -> None:
        """A refresh token was presented."""
        account, generation = self.known.get(token, ("?", -1))
        self.requests[account][generation] += 1
        if generation < self.generation.get(account, -1):
            self.reuse += 1

    def answered(self, token: str, status: int, body: bytes) -> None:
        """The library has answered."""
        error = json.loads(body).get("error", "") if body[:1] == b"{" else ""
        self.answers[f"{status} {error}".strip()] += 1
        if status == 200 and token in self.known:
            account, generation = self.known[token]
            self.refreshes[account][generation] += 1
            self.known[json.loads(body)["refresh_token"]] = (account, generation + 1)
            self.generation[account] = max(self.generation[account], generation + 1)

    def next_fault(self) -> dict[str, Any]:
        """The fault that hits this token request, kind "" when none does."""
        fault = self.fault
        if not fault["kind"]:
            return fault
        self.hits += 1
        if self.hits % fault["every"] or (
            fault["times"] and self.hits // fault["every"] > fault["times"]
        ):
            return FAULT
        self.faults += 1
        return fault

    def stats(self, alive: list[str]) -> dict[str, Any]:
        return {
            "accounts": {
                account: {
                    "generation": generation,
                    "requests": self.requests[account],
                    "refreshes": self.refreshes[account],
                }
                for account, generation in self.generation.items()
            },
            "requests": sum(sum(counts.values()) for counts in self.requests.values()),
            "refreshes": sum(sum(counts.values()) for counts in self.refreshes.values()),
            "answers": self.answers,
            "live": len(alive),
            "alive": alive,
            "reuse": self.reuse,
            "faults": self.faults,
        }


LEDGER = Ledger()
LIBRARY = threading.Lock()
urlpatterns: list[Any] = []  # the name Django looks for; filled once it is set up


class Desk:
    """Django middleware: admin pages, counters and faults in front of the library."""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: Any) -> Any:
        from django.http import HttpResponse, JsonResponse

        if request.path == "/admin/stats":
            with LEDGER.lock:
                return JsonResponse(LEDGER.stats(alive()))
        if request.path == "/admin/fault":
            with LEDGER.lock:
                LEDGER.fault = FAULT | json.loads(request.body or b"{}")
                LEDGER.hits = 0
                (LEDGER.lifted.clear if LEDGER.fault["kind"] else LEDGER.lifted.set)()
            return JsonResponse(LEDGER.fault)
        if request.path == "/admin/end":
            return JsonResponse({"ended": end_access_token(request.body.decode())})
        if not request.path.endswith("/token/"):
            return self.get_response(request)
        token = request.POST.get("refresh_token", "")
        with LEDGER.lock:
            LEDGER.asked(token)
            fault = LEDGER.next_fault()
        kind = fault["kind"]
        if kind == "delay":
            end = time.monotonic() + fault["delay_ms"] / 1000
            while (left_s := end - time.monotonic()) > 0 and not LEDGER.lifted.wait(
                min(left_s, 0.05)
            ):
                pass
        if kind == "status":
            headers = (
                {} if fault["retry_after"] is None else {"Retry-After": str(fault["retry_after"])}
            )
            return HttpResponse("busy", status=fault["status"], headers=headers)
        if kind == "html":
            return HttpResponse("<html><body>Sign in</body></html>", content_type="text/html")
        # One at a time: without a grace the library, on a database that locks no rows, still gives
        # requests that overlap the same pair, and our counters are to show who sends a token twice.
        with LIBRARY:
            response = self.get_response(request)
        with LEDGER.lock:
            LEDGER.answered(token, response.status_code, response.content)
        if kind == "drop":
            request.META["tidewarden.connection"].shutdown(socket.SHUT_RDWR)
        return response


def alive() -> list[str]:
    """Accounts that still hold a refresh token which works."""
    from oauth2_provider.models import RefreshToken

    return sorted(
        set(
            RefreshToken.objects.filter(revoked__isnull=True).values_list(
                "user__username", flat=True
            )
        )
    )


class Handler(WSGIRequestHandler):
    """Silent, and hands the application its connection."""

    def get_environ(self) -> dict[str, Any]:
        return super().get_environ() | {"tidewarden.connection": self.connection}

    def log_message(self, *_args: Any) -> None:
        pass


class Server(socketserver.ThreadingMixIn, WSGIServer):
    """A thread for each connection."""

    daemon_threads = True
    request_queue_size = 256

    def server_bind(self) -> None:
        # Not HTTPServer's, which asks the resolver for a host name.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]
        self.setup_environ()

    def handle_error(self, *_args: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(*_args)


def for_people() -> dict[str, Any]:
    """Return the settings without which nobody signs in and consents in a browser."""
    within = "django.template.context_processors.request"
    return {
        "MIDDLEWARE": [
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            f"{__name__}.Desk",
        ],
        "SESSION_ENGINE": "django.contrib.sessions.backends.signed_cookies",
        "LOGIN_URL": "/login",
        "TEMPLATES": [
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {"context_processors": [within]},
            }
        ],
    }


def sign_in(request: Any) -> Any:
    """Ask who somebody is, and believe it."""
    from django.contrib.auth import login
    from django.contrib.auth.models import User
    from django.http import HttpResponse, HttpResponseRedirect

    if request.method != "POST":
        field = '<label>User <input name="user"></label><button>Log in</button>'
        return HttpResponse(f'<form method="post">{field}</form>')
    user = User.objects.get(username=request.POST["user"])
    login(request, user, backend="django.contrib.auth.backends.ModelBackend")
    return HttpResponseRedirect(request.GET["next"])


def configure(options: argparse.Namespace) -> None:
    people = for_people() if options.redirect_uri else {"MIDDLEWARE": [f"{__name__}.Desk"]}
    settings.configure(
        **people,
        SECRET_KEY=secrets.token_hex(16),
        ALLOWED_HOSTS=["127.0.0.1"],
        USE_TZ=True,
        ROOT_URLCONF=__name__,
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": str(Path(options.folder) / "dot.sqlite3"),
                "OPTIONS": {
                    "timeout": 20,
                    "transaction_mode": "IMMEDIATE",
                    "init_command": "PRAGMA journal_mode=wal; PRAGMA synchronous=off",
                },
            }
        },
        INSTALLED_APPS=APPS,
        MIGRATION_MODULES=dict.fromkeys(
            app.rpartition(".")[2] for app in APPS
        ),  # the tables at once, without their history
        # Only to mint the seeds' owners; nobody signs in.
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
        OAUTH2_PROVIDER={
            "ACCESS_TOKEN_EXPIRE_SECONDS": options.life,
            "ROTATE_REFRESH_TOKEN": True,
            "REFRESH_TOKEN_GRACE_PERIOD_SECONDS": options.grace,
            "REFRESH_TOKEN_REUSE_PROTECTION": options.family,
            "REFRESH_TOKEN_EXPIRE_SECONDS": 86400,
            "SCOPES": {"mail": "m", "files": "f"},
        },
    )
    django.setup()


def mint(accounts: int, life_s: int, redirect_uri: str) -> list[tuple[str, str]]:
    """Grants without a browser: the owner, an access token and a refresh token for each account."""
    from django.contrib.auth.models import User
    from django.db import transaction
    from django.utils import timezone
    from oauth2_provider.models import AccessToken, Application, RefreshToken

    seeds = []
    with transaction.atomic():
        # A hashed client secret costs 2 refreshes a second instead of 82: the hash is checked at
        # each.
        app = Application.objects.create(
            name=CLIENT_ID,
            client_id=CLIENT_ID,
            client_secret=CLIENT_SECRET,
            hash_client_secret=False,
            client_type="confidential",
            authorization_grant_type="authorization-code" if redirect_uri else "password",
            redirect_uris=redirect_uri,
        )
        expires = timezone.now() + timedelta(seconds=life_s)
        for number in range(accounts):
            user = User.objects.create(username=f"u{number}")
            common = {"user": user, "application": app}
            access = AccessToken.objects.create(
                token=secrets.token_urlsafe(24), scope=SCOPE, expires=expires, **common
            )
            refresh = RefreshToken.objects.create(
                token=secrets.token_urlsafe(24),
                access_token=access,
                token_family=uuid.uuid4(),
                **common,
            )
            seeds.append((user.username, refresh.token))
            LEDGER.seed(user.username, refresh.token)
    return seeds


def end_access_token(token: str) -> int:
    """
    Refuse an access token from now on, though its time is not over.

    The library's revocation endpoint would end the refresh token with it.
    """
    from django.utils import timezone
    from oauth2_provider.models import AccessToken

    return int(AccessToken.objects.filter(token=token).update(expires=timezone.now()))


def protected() -> Any:
    """
    A resource that the library guards; it answers whose token it was, and the body it got.

    The library's own decorator refuses a token by 403: RFC 6750, 3.1 wants 401, as its integration
    into Django REST framework answers.
    """
    from django.http import HttpResponse, JsonResponse
    from django.views.decorators.csrf import csrf_exempt
    from oauth2_provider.oauth2_backends import get_oauthlib_core

    @csrf_exempt
    def mail(request: Any) -> Any:
        valid, found = get_oauthlib_core().verify_request(request, scopes=["mail"])
        if not valid:
            headers = {"WWW-Authenticate": 'Bearer error="invalid_token"'}
            return HttpResponse("no such token", status=401, headers=headers)
        return JsonResponse({"user": found.user.username, "body": request.body.decode()})

    return mail


def end_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--accounts", type=int, default=50)
    parser.add_argument(
        "--grace",
        type=int,
        default=0,
        help="seconds in which a used token gets the same pair again",
    )
    parser.add_argument("--life", type=int, default=60, help="seconds an access token lives")
    parser.add_argument(
        "--family", action="store_true", help="reuse after the grace revokes the whole grant"
    )
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument(
        "--redirect-uri", default="", help="people sign in and consent in browsers, and go there"
    )
    options = parser.parse_args()
    threading.Thread(target=end_with_parent, daemon=True).start()
    configure(options)
    from django.core.management import call_command
    from django.core.wsgi import get_wsgi_application
    from django.urls import include, path

    urlpatterns.append(path("api/mail", protected()))
    urlpatterns.append(path("login", sign_in))
    urlpatterns.append(path("o/", include("oauth2_provider.urls", namespace="oauth2_provider")))
    call_command("migrate", run_syncdb=True, verbosity=0)
    seeds = mint(options.accounts, options.life, options.redirect_uri)
    with Server(("127.0.0.1", options.port), Handler) as server:
        server.set_app(get_wsgi_application())
        base = f"http://127.0.0.1:{server.server_port}"
        ready = {
            "base": base,
            "token_url": f"{base}/o/token/",
            "client_id": CLIENT_ID,
            "client_secret": CLIENT_SECRET,
            "seeds": seeds,
        }
        print(json.dumps(ready), flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
