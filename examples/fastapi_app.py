"""
Serve a web application that calls a provider's API, and has slow work done elsewhere.

    tidewarden up --sandbox 100                          # in one terminal
    pip install fastapi uvicorn 'tidewarden[httpx]'
    uvicorn examples.fastapi_app:app                     # in another, in the same folder
    curl http://127.0.0.1:8000/me/user-000001
    curl -X POST http://127.0.0.1:8000/reports/page-1
    tidewarden worker examples.worker_app:worker         # in a third; it makes the reports
    curl http://127.0.0.1:8000/reports/page-1

The token of an account comes by ``Depends``: kept fresh by the cluster, kept in memory while it
lives, refreshed once for all requests when the API answers 401.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, TypedDict

import httpx
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse

from tidewarden.client import AsyncClient
from tidewarden.client.auth import TokenAuth
from tidewarden.errors import Error

API = os.environ.get("API_URL", "http://127.0.0.1:7510")  # the sandbox's, of `tidewarden up`


class State(TypedDict):
    """What all requests share: one client of the cluster, and one of the API."""

    cluster: AsyncClient
    web: httpx.AsyncClient


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[State]:
    """Connect when the application starts, in the loop that serves it, and close at its end."""
    async with AsyncClient() as cluster, httpx.AsyncClient(base_url=API) as web:
        yield {"cluster": cluster, "web": web}


app = FastAPI(lifespan=lifespan)


def cluster_of(request: Request) -> AsyncClient:
    """Return the client of the cluster."""
    cluster: AsyncClient = request.state.cluster
    return cluster


Cluster = Annotated[AsyncClient, Depends(cluster_of)]


def auth_of(user: str, cluster: Cluster) -> TokenAuth:
    """Return what authenticates requests to the API as the account of ``user``."""
    return TokenAuth(f"sandbox/{user}", cluster)


Auth = Annotated[TokenAuth, Depends(auth_of)]


@app.exception_handler(Error)
async def refused(request: Request, error: Error) -> JSONResponse:
    """Answer an error of the cluster with the status that it has at the cluster's own door."""
    body = {"error": error.code, "message": str(error)}
    return JSONResponse(body, status_code=error.http_status)


@app.get("/me/{user}")
async def me(auth: Auth, request: Request) -> dict[str, str]:
    """Ask the API who the user is there."""
    web: httpx.AsyncClient = request.state.web
    answer = await web.get("/me", auth=auth)
    answer.raise_for_status()
    found: dict[str, str] = answer.json()
    return found


@app.post("/reports/{page}", status_code=202)
async def begin(page: str, cluster: Cluster) -> dict[str, str]:
    """Have a report made. Asked again it is begun once: the page is the task's id."""
    return {"id": await cluster.queue("reports").put(page, id=page)}


@app.get("/reports/{page}")
async def report(page: str, cluster: Cluster) -> dict[str, str]:
    """Tell whether a report is made, and what came of it within the last minute."""
    ending = await cluster.queue("reports").wait(page, timeout_ms=0)
    return {"state": ending.word, "result": ending.result.decode()}
