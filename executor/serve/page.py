"""The page at `/`: one file, whose script and style alone may run, and which may talk to this server alone."""

from __future__ import annotations

import base64
import re
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from executor.serve.endpoint import SAFE

FILE: Final = "page.html"


@cache
def content() -> tuple[bytes, str]:
    """The page and its Content-Security-Policy, which names its one script and its one style by what they hold."""
    page = files("executor.serve").joinpath(FILE).read_text(encoding="utf-8")
    policy = {
        "default-src": "'none'",
        "script-src": _hash(page, "script"),
        "style-src": _hash(page, "style"),
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
    }
    return page.encode(), "; ".join(f"{name} {value}" for name, value in policy.items())


def response(_: Request) -> Response:
    """The page."""
    page, policy = content()
    headers = {"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache", **SAFE}
    return Response(page, headers=headers, media_type="text/html")


def _hash(page: str, element: str) -> str:
    (inside,) = re.findall(f"<{element}>(.*?)</{element}>", page, re.DOTALL)
    return f"'sha256-{base64.b64encode(sha256(inside.encode()).digest()).decode()}'"
