"""The API and the dashboard beside a Django application, below a path of the same server.

    uvicorn examples.mount_django:site        # then http://127.0.0.1:8000/jobs/

A project writes the last lines into its ``asgi.py``.
"""

from typing import Any

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path

import oxcart.http
from oxcart import Queue

emails = Queue("emails")


def home(_: HttpRequest) -> HttpResponse:
    """The application's own page."""
    return HttpResponse("the shop")


urlpatterns = [path("", home)]

if not settings.configured:
    settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="an example, not a secret")
    django.setup()

pages = get_asgi_application()
jobs = oxcart.http.app([emails])


async def site(scope: Any, receive: Any, send: Any) -> None:
    """Leads requests below /jobs to Oxcart, and all others to Django."""
    if scope["type"] == "http" and f"{scope['path']}/".startswith("/jobs/"):
        await jobs({**scope, "root_path": "/jobs"}, receive, send)
    elif scope["type"] == "http":
        await pages(scope, receive, send)
