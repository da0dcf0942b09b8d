"""A conversation to the text a model was trained on, by the Jinja2 template of its file, and to token ids.

The template is part of a downloaded file, so it is an adversary: it is rendered in a process of its own (rendering/child.py),
which has bounds on time, memory and output, and can open nothing. What people say is an adversary too: a control token that
somebody writes into a message is text, for the rendering says of each character whether the template wrote it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from executor.base.arguments import described, instance
from executor.base.errors import ModelError
from executor.text.special_tokens import Span
from ptxgen.errors import ArgumentError

if TYPE_CHECKING:
    from executor.text.tokenizer import Tokenizer

    Message = Mapping[str, Any]

MAX_TEMPLATE: Final = 1_000_000  # characters
MAX_REASON: Final = 1_000  # characters of an error that the template chooses
BYTES_A_CHARACTER: Final = 24
"""Of an answer, at most, but for its brackets: a run of one character costs most."""

_START: Final = "import sys; sys.path += sys.argv[1:]; from executor.text.rendering.child import main; main()"


@dataclass(frozen=True)
class RenderingLimits:
    """What one rendering may take. cpu_seconds: of its processor; seconds: in all; memory: bytes of address space;
    characters: of its text, by default four times a context of 2^18 tokens, and of the conversation."""

    cpu_seconds: int = 2
    seconds: float = 20.0
    memory: int = 512 << 20
    characters: int = 4_000_000


LIMITS: Final = RenderingLimits()


class TemplateRefusal(ModelError):
    """What a template itself does not do, by its raise_exception or by an error of its expressions."""


def chat_ids(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    template: str | None = None,
    extra: Mapping[str, Any] | None = None,
    **options: Any,
) -> list[int]:
    """The prompt of a conversation as token ids, with the options of `render_spans` but bos_token and eos_token.

    template: the name of one of the file's; by default the one that ChatTemplates.choose gives, for tools if `extra` has some.
    ModelError if the file has no chat template, or none for this.
    """
    chosen = tokenizer.chat_templates.choose(template, tools=extra is not None and extra.get("tools") is not None)
    bos, eos = tokenizer.bos_token, tokenizer.eos_token
    return tokenizer.encode_spans(render_spans(chosen, messages, bos_token=bos, eos_token=eos, extra=extra, **options))


def conversation(messages: str | Sequence[Message], system: str | None = None) -> list[Message]:
    """The messages of a conversation, of which one text is a user's, after a system message if one is given. ArgumentError for
    what no template could take, and for two system messages."""
    said: list[Message] = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    if not said:
        raise ArgumentError("the conversation has no messages; give at least one")
    for at, message in enumerate(said):
        if not isinstance(message, Mapping) or "role" not in message:
            raise ArgumentError(f'message {at} is {described(message)}; allowed: a mapping with "role" and "content"')
    if system is None:
        return said
    if said[0]["role"] == "system":
        raise ArgumentError("system is given, and the messages begin with a system message, too; give one of them")
    return [{"role": "system", "content": instance("system", system, str)}, *said]


def render(template: str, messages: Sequence[Message], **options: Any) -> str:
    """The prompt of a conversation as text, which no longer tells who wrote what: give models `chat_ids`. Options are those of
    `render_spans`."""
    return "".join(span.text for span in render_spans(template, messages, **options))


def render_spans(
    template: str,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = True,
    bos_token: str = "",
    eos_token: str = "",
    extra: Mapping[str, Any] | None = None,
    limits: RenderingLimits = LIMITS,
) -> list[Span]:
    """The prompt of a conversation, as Hugging Face's apply_chat_template renders it, in spans: trusted ones the template
    wrote, the others come from the conversation and `extra`.

    messages: mappings with at least "role" and "content", of what JSON knows. A role that is one of sandbox.ROLES counts as
    the template's. extra: further variables of the template, such as enable_thinking. The text may already start with
    bos_token. TemplateRefusal for whatever the template does wrong, including its own raise_exception; ModelError where it
    takes more than it may.
    """
    if len(template) > MAX_TEMPLATE:
        raise ModelError(f"the chat template has {len(template)} characters; allowed: up to {MAX_TEMPLATE}")
    request = asdict(limits) | {
        "template": template,
        "messages": [dict(message) for message in messages],
        "variables": dict(extra or {}) | {"add_generation_prompt": add_generation_prompt},
        "tokens": {"bos_token": bos_token, "eos_token": eos_token},
    }
    try:
        body = json.dumps(request, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(f"a conversation may only hold what JSON can: {error}") from error
    if len(body) - len(template) > BYTES_A_CHARACTER * limits.characters:
        raise ArgumentError(f"the conversation has {len(body)} characters; allowed: about {limits.characters}")
    return _spans(_answer(body.encode(errors="surrogatepass"), limits))


def _answer(request: bytes, limits: RenderingLimits) -> Any:
    """What the rendering process says, as it came out of JSON. ModelError if it says nothing, or takes more than it may."""
    deadline = time.monotonic() + limits.seconds
    with _memory_file() as request_file, _memory_file() as error_file:
        request_file.write(request)
        request_file.seek(0)
        process = _start(request_file, error_file)
        try:
            assert process.stdout is not None
            with process.stdout as pipe:
                answer = _read(pipe.fileno(), deadline, BYTES_A_CHARACTER * (limits.characters + MAX_REASON))
            status = process.wait(max(0.0, deadline - time.monotonic()))
        except (TimeoutError, subprocess.TimeoutExpired):
            raise _failed(f"more than {limits.seconds:g} s") from None
        finally:
            process.kill()  # nothing, if it has ended
            process.wait()
        if status == -signal.SIGXCPU:
            raise _failed(f"more than {limits.cpu_seconds} s of processor time")
        if status != 0:
            end = signal.Signals(-status).name if status < 0 else f"status {status}"
            error_file.seek(-min(MAX_REASON // 2, error_file.seek(0, os.SEEK_END)), os.SEEK_END)
            words = error_file.read().decode(errors="replace").strip()
            raise _failed(f"its process ended with {end} and said {words or 'nothing'}")
    try:
        return json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise _failed(f"its process answered with no JSON: {error}") from error


def _memory_file() -> BinaryIO:
    """Unlike a pipe, it can be written whole before it is read."""
    return os.fdopen(os.memfd_create("chat"), "w+b", buffering=0)


def _start(stdin: BinaryIO, stderr: BinaryIO) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", "-S", "-c", _START, *_packages()]
    try:
        # Ctrl-C in the terminal is for us, who end the process then: so it is of another group.
        return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr, bufsize=0, process_group=0)
    except OSError as error:
        raise ModelError(f"the chat template needs a process of its own, and none can be started: {error}") from error


def _read(pipe: int, deadline: float, most: int) -> bytes:
    """All that comes through a pipe. TimeoutError after the deadline, ModelError for more than `most` bytes."""
    ready = select.poll()
    ready.register(pipe, select.POLLIN)
    parts: list[bytes] = []
    while ready.poll(max(0.0, deadline - time.monotonic()) * 1000):
        parts.append(os.read(pipe, 1 << 20))
        most -= len(parts[-1])
        if most < 0:
            raise _failed("its process sent too long an answer")
        if not parts[-1]:
            return b"".join(parts)
    raise TimeoutError


def _spans(answer: Any) -> list[Span]:
    """The runs of an answer. ModelError for the error that it tells instead, and for an answer of another form."""
    match answer:
        case {"error": str(reason)}:
            raise TemplateRefusal(str(_failed(reason)))
        case {"runs": list(runs)} if all(map(_is_run, runs)):
            return [Span(text, own) for text, own in runs]
    raise _failed("its process sent an invalid answer")


def _is_run(value: Any) -> bool:
    match value:
        case [str(), bool()]:
            return True
    return False


def _failed(reason: str) -> ModelError:
    """The error of a template. It may have chosen the words, so they are made harmless to a terminal."""
    shown = "".join(c if c.isprintable() else " " for c in reason[:MAX_REASON])
    return ModelError(f"the chat template failed: {shown}")


def _packages() -> list[str]:
    """Folders of what the rendering process imports beside the standard library."""
    specs = [find_spec(name) for name in ("jinja2", "markupsafe")]
    origins = [Path(__file__).parents[1] / "__init__.py", *(Path(spec.origin) for spec in specs if spec and spec.origin)]
    return list(dict.fromkeys(str(origin.parents[1]) for origin in origins))
