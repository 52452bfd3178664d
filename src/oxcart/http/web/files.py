"""The dashboard's own files: its style, its script and its icon."""

from __future__ import annotations

import hashlib
from typing import Any

from litestar import Request, get
from litestar.params import FromPath
from litestar.response import Response

from oxcart.http.access import OPEN
from oxcart.http.errors import not_found
from oxcart.http.web.page import FOLDER

_TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


def _read() -> dict[str, tuple[bytes, str, str]]:
    found = {}
    for path in sorted((FOLDER / "static").iterdir()):
        content = path.read_bytes()
        tag = hashlib.blake2b(content, digest_size=12).hexdigest()
        found[path.name] = (content, _TYPES[path.suffix[1:]], f'"{tag}"')
    return found


#: Content, type and tag of each file.
FILES = _read()


@get("/static/{file:str}", opt=OPEN, include_in_schema=False)
async def static(request: Request[Any, Any, Any], file: FromPath[str]) -> Response[bytes]:
    """Returns a file; 304 if the browser has this version already."""
    if file not in FILES:
        raise not_found(f"file {file}")
    content, media_type, tag = FILES[file]
    headers = {"Cache-Control": "no-cache", "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(b"", status_code=304, headers=headers)
    return Response(content, media_type=media_type, headers=headers)


ROUTES = [static]
