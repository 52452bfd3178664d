"""The HTTP API: ``app`` serves queues, ``Client`` and ``SyncClient`` call such a server.

Needs the packages of ``pip install 'oxcart[web]'``.
"""

from importlib import import_module as _import
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oxcart.http.application import app
    from oxcart.http.client import Client
    from oxcart.http.sync_client import SyncClient

_PLACES = {
    "Client": "oxcart.http.client",
    "SyncClient": "oxcart.http.sync_client",
    "app": "oxcart.http.application",
}

__all__ = ["Client", "SyncClient", "app"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'oxcart.http' has no attribute {name!r}")
    try:
        value = getattr(_import(_PLACES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("litestar", "uvicorn", "httptools", "httpx"):
            raise
        from oxcart.model.errors import MissingExtra

        raise MissingExtra("the HTTP API", "web") from error
    globals()[name] = value
    return value
