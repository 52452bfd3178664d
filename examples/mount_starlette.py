"""The API and the dashboard inside a Starlette application; callers need a key of ``oxcart access create``.

uvicorn examples.mount_starlette:site        # then http://127.0.0.1:8000/jobs/
"""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

import oxcart.http
from oxcart import Queue

emails = Queue("emails")


async def home(_: Request) -> PlainTextResponse:
    """The application's own page."""
    return PlainTextResponse("the shop")


site = Starlette(routes=[Route("/", home), Mount("/jobs", oxcart.http.app([emails]))])
