"""The API and the dashboard inside a FastAPI application, for its signed-in users alone.

uvicorn examples.mount_fastapi:site        # then http://127.0.0.1:8000/jobs/
"""

import secrets
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

import oxcart.http
from oxcart import Queue

emails = Queue("emails")
PASSWORD = secrets.token_urlsafe()  # an application has its own way to know its users


def is_known(authorization: str) -> bool:
    """Whether a request is of a signed-in user."""
    return secrets.compare_digest(authorization.encode(), f"Bearer {PASSWORD}".encode())


class SignedIn:
    """Lets only signed-in users through to a mounted application."""

    def __init__(self, inner: ASGIApp) -> None:
        self.inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] == "http" and not is_known(Request(scope).headers.get("authorization", "")):
            await PlainTextResponse("sign in first", status_code=401)(scope, receive, send)
        else:
            await self.inner(scope, receive, send)


def user(request: Request) -> str:
    """The user of a route of the application itself."""
    if not is_known(request.headers.get("authorization", "")):
        raise HTTPException(401)
    return "ada"


site = FastAPI()


@site.post("/welcome/{to}")
async def welcome(to: str, _: Annotated[str, Depends(user)]) -> str:
    """Adds a job from a route of the application."""
    return (await emails.add("welcome", {"to": to})).id


# trusted: the application around it has checked the caller.
site.mount("/jobs", SignedIn(oxcart.http.app([emails], trusted=True)))
