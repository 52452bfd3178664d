"""The HTTP API: ``app`` serves queues, ``Client`` calls such a server.

Needs the packages of ``pip install 'oxcart[web]'``.
"""

from importlib import import_module as _import
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oxcart.http.application import app
    from oxcart.http.client import Client

_PLACES = {"Client": "oxcart.http.client", "app": "oxcart.http.application"}

__all__ = ["Client", "app"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'oxcart.http' has no attribute {name!r}")
    try:
        value = getattr(_import(_PLACES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("litestar", "uvicorn", "httpx"):
            raise
        from oxcart.model.errors import MissingExtra

        raise MissingExtra("the HTTP API", "web") from error
    globals()[name] = value
    return value
