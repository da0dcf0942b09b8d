"""The process that renders one chat template: a request as JSON on stdin, the answer as JSON on stdout, and no way to anything
else. Whatever the template does, this process has so much time and memory and no more."""

from __future__ import annotations

import json
import os
import resource
import sys
from datetime import datetime
from importlib import import_module
from typing import Any

from jinja2.exceptions import TemplateError

from executor.text.rendering.sandbox import render
from executor.text.rendering.traced import runs

LATE = ("encodings.unicode_escape", "html", "jinja2.debug", "pprint", "textwrap")
"""What Jinja2 and MarkupSafe import only when a template calls for it; by then this process can open no file."""


def confine(cpu_seconds: int, memory: int) -> None:
    """From here on this process opens no file, writes none, starts no other, and ends by a signal after about `cpu_seconds`
    more of processor time. memory: bytes of address space."""
    for name in LATE:
        import_module(name)
    datetime.now().astimezone()  # reads the time zone
    used = round(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
    limit(resource.RLIMIT_CPU, used + cpu_seconds, used + cpu_seconds + 1)  # the first gives a signal that says why
    limit(resource.RLIMIT_AS, memory, memory)
    for nothing in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, resource.RLIMIT_CORE):
        limit(nothing, 0, 0)


def limit(what: int, soft: int, hard: int) -> None:
    """Set a limit of this process; one that is lower already stays."""
    allowed = resource.getrlimit(what)[1]
    if allowed != resource.RLIM_INFINITY:
        soft, hard = min(soft, allowed), min(hard, allowed)
    resource.setrlimit(what, (soft, hard))


def answer(request: dict[str, Any]) -> bytes:
    """As JSON: the rendered text in runs, or why there is none."""
    try:
        text = render(request["template"], request["messages"], request["variables"], request["tokens"])
        if len(text) <= request["characters"]:
            return as_json({"runs": runs(text)})
        reason = f"more than {request['characters']} characters of output"
    except MemoryError:
        reason = f"more than {request['memory'] >> 20} MiB of memory"
    except TemplateError as error:
        line = getattr(error, "lineno", None)
        reason = f"{error}" + (f" (line {line})" if line else "")
    except Exception as error:  # a template runs arbitrary expressions: any Python error is the template's
        reason = f"{type(error).__name__}: {error}"
    return as_json({"error": reason[: request["characters"]]})


def as_json(value: Any) -> bytes:
    """UTF-8, in which lone surrogates stay what they are."""
    return json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass")


def main() -> None:
    """Answer one request."""
    request = json.loads(sys.stdin.buffer.read())
    confine(request["cpu_seconds"], request["memory"])
    sys.stdout.buffer.write(answer(request))
    sys.stdout.flush()
    os._exit(0)  # what a template has built need not be taken down in order
