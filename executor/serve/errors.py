"""What goes wrong with a request, in the shape of OpenAI's errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from executor.base.errors import GrammarError, SamplingError
from ptxgen.errors import ArgumentError, PtxGenError

_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ApiError(PtxGenError):
    """An error of one request. status: of HTTP; param: the parameter that is wrong; code: a word for it."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """What the client gets."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


class ClientGone(Exception):
    """The client has disconnected."""


@contextmanager
def blamed(param: str | None, *, grammar: str | None = None) -> Iterator[None]:
    """A block whose ArgumentErrors are the fault of this parameter of the request; those of a grammar, of `grammar`; those of a
    sampler, of the setting that they name. All of them are the request's, whenever they come: to ask again does not help."""
    try:
        yield
    except SamplingError as error:
        raise ApiError(str(error), param=error.setting) from error
    except GrammarError as error:
        raise ApiError(str(error), param=grammar or param) from error
    except ArgumentError as error:
        raise ApiError(str(error), param=param) from error
