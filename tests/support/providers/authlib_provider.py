"""
An authorization server that is not ours: Authlib, which knows assertions as grants (RFC 7523) and
clients' own credentials.

Started by the ``authlib`` fixture, as dot_provider.py is and with the same pages: ``GET
/admin/stats``; ``POST /admin/fault`` (``kind`` drop, ``times``) and ``POST /admin/gone``
(``client`` true or false, ``subjects`` that are refused).
"""

from __future__ import annotations

import argparse
import json
import socket
import threading
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import authlib.oauth2.rfc6749.grants as usual
from authlib.integrations.django_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import ClientMixin, scope_to_list
from authlib.oauth2.rfc7523 import JWTBearerGrant
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from dot_provider import Handler, Server, end_with_parent
from joserfc import jwk, jws

CLIENT_ID = "c0"
CLIENT_SECRET = "s3cr%t"
urlpatterns: list[Any] = []  # the name Django looks for


class Books:
    """What was asked and answered, by whom it was for; and what is to go wrong."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.answers: dict[str, Counter[str]] = defaultdict(Counter)
        self.jtis: Counter[str] = Counter()
        self.gone = {"client": False, "subjects": []}
        self.drops = 0


class Client(ClientMixin):
    """The only one."""

    client_id = CLIENT_ID

    def get_client_id(self) -> str:
        return CLIENT_ID

    def get_allowed_scope(self, scope: str) -> str:
        return " ".join(word for word in scope_to_list(scope) if word.startswith("s"))

    def check_client_secret(self, client_secret: str) -> bool:
        return client_secret == CLIENT_SECRET

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method == "client_secret_basic"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type in (usual.ClientCredentialsGrant.GRANT_TYPE, JWTBearerGrant.GRANT_TYPE)


BOOKS = Books()
CLIENT = Client()


class Issuing(AuthorizationServer):
    """Keeps no tokens: nobody presents one here."""

    def query_client(self, client_id: str) -> Client | None:
        return CLIENT if client_id == CLIENT_ID and not BOOKS.gone["client"] else None

    def save_token(self, token: dict[str, Any], request: Any) -> None:
        """Nothing."""


def assertions(key: jwk.Key, audience: str) -> type[JWTBearerGrant]:
    """The library's grant for one client and its key."""

    class Assertions(JWTBearerGrant):
        def resolve_issuer_client(self, issuer: str) -> Client | None:
            return CLIENT if issuer == CLIENT_ID and not BOOKS.gone["client"] else None

        def resolve_client_public_key(self, client: Client) -> jwk.Key:
            return key

        def authenticate_user(self, subject: str) -> str | None:
            return None if subject in BOOKS.gone["subjects"] else subject

        def has_granted_permission(self, client: Client, user: str) -> bool:
            return True

        def get_audiences(self) -> list[str]:
            return [audience]

    return Assertions


def whose(request: HttpRequest) -> str:
    """The subject or scope that a request is for; its assertion's ``jti`` is counted."""
    if assertion := request.POST.get("assertion"):
        claims = json.loads(jws.extract_compact(assertion.encode()).payload)
        BOOKS.jtis[claims["jti"]] += 1
        return str(claims.get("sub", "?"))
    return request.POST.get("scope", "?")


def serve_pages(server: Issuing) -> None:
    def token(request: HttpRequest) -> HttpResponse:
        with BOOKS.lock:
            subject = whose(request)
            dropped = BOOKS.drops > 0
            BOOKS.drops -= dropped
        response = server.create_token_response(request)
        error = json.loads(response.content).get("error", "")
        with BOOKS.lock:
            BOOKS.answers[subject][f"{response.status_code} {error}".strip()] += 1
        if dropped:
            request.META["tidewarden.connection"].shutdown(socket.SHUT_RDWR)
        return response

    def stats(_request: HttpRequest) -> HttpResponse:
        with BOOKS.lock:
            return JsonResponse(
                {"answers": BOOKS.answers, "reused": sum(n - 1 for n in BOOKS.jtis.values())}
            )

    def fault(request: HttpRequest) -> HttpResponse:
        BOOKS.drops = json.loads(request.body)["times"]
        return JsonResponse({})

    def gone(request: HttpRequest) -> HttpResponse:
        BOOKS.gone |= json.loads(request.body)
        return JsonResponse(BOOKS.gone)

    urlpatterns.extend(path(f"admin/{page.__name__}", page) for page in (stats, fault, gone))
    urlpatterns.append(path("token", token))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--key",
        required=True,
        help="PEM file with the private key of which assertions must be signed",
    )
    parser.add_argument("--life", type=int, default=60, help="seconds an access token lives")
    options = parser.parse_args()
    threading.Thread(target=end_with_parent, daemon=True).start()
    lives = {"client_credentials": options.life, JWTBearerGrant.GRANT_TYPE: options.life}
    settings.configure(
        ALLOWED_HOSTS=["127.0.0.1"],
        ROOT_URLCONF=__name__,
        MIDDLEWARE=[],
        SECRET_KEY="x",
        AUTHLIB_OAUTH2_PROVIDER={"token_expires_in": lives},
    )
    key = jwk.ECKey.import_key(Path(options.key).read_text())
    with Server(("127.0.0.1", 0), Handler) as http:
        base = f"http://127.0.0.1:{http.server_port}"
        server = Issuing(None, None)
        server.register_grant(usual.ClientCredentialsGrant)
        server.register_grant(assertions(key, f"{base}/token"))
        serve_pages(server)
        http.set_app(get_wsgi_application())
        known = {"client_id": CLIENT_ID, "client_secret": CLIENT_SECRET, "seeds": []}
        print(json.dumps({"base": base, "token_url": f"{base}/token", **known}), flush=True)
        http.serve_forever()


if __name__ == "__main__":
    main()
