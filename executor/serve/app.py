"""The paths of the server, and what each one gives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from executor.base.errors import shown
from executor.serve import chat, completions, embeddings, metrics, page
from executor.serve.access import AccessRules
from executor.serve.endpoint import JSON_TYPE, SAFE, Endpoint
from executor.serve.errors import ApiError
from executor.serve.service import Served, Service
from executor.serve.wire import as_json

POSTED: Final = {
    "/v1/chat/completions": chat.chat,
    "/v1/completions": completions.complete,
    "/v1/embeddings": embeddings.embed,
}
"""What takes a JSON body."""

Answer = Callable[[Request], Awaitable[Response]]


def application(service: Service, access: AccessRules) -> Starlette:
    """The ASGI application."""

    def guarded(answer: Callable[[Request], Response], *, keyed: bool) -> Answer:
        """For requests without a body."""

        async def get(request: Request) -> Response:
            try:
                access.require_host(request.headers)
                if keyed:
                    access.require_key(request.headers)
                return answer(request)
            except ApiError as error:
                return _failed(error)

        return get

    def health(_: Request) -> Response:
        trouble = service.trouble
        return _json({"status": trouble or "ok"}, 503 if trouble else 200)

    def models(_: Request) -> Response:
        return _json({"object": "list", "data": [_model(service.served)]})

    def model(request: Request) -> Response:
        name = request.path_params["name"]
        if name != service.served.name:
            raise ApiError(
                f"there is no model {shown(name)}; allowed: {service.served.name}",
                status=404,
                param="model",
                code="model_not_found",
            )
        return _json(_model(service.served))

    def counted(_: Request) -> Response:
        return Response(service.metrics.text(), headers={"Content-Type": metrics.CONTENT_TYPE, **SAFE})

    gets = {
        "/": guarded(page.response, keyed=False),
        "/health": guarded(health, keyed=False),
        "/metrics": guarded(counted, keyed=True),
        "/v1/models": guarded(models, keyed=True),
        "/v1/models/{name:path}": guarded(model, keyed=True),
    }
    routes = [Route(path, get, methods=["GET"]) for path, get in gets.items()]
    routes += [Route(path, Endpoint(path, service, access, handler), methods=["POST"]) for path, handler in POSTED.items()]
    return Starlette(
        routes=routes,
        middleware=[Middleware(_without_slash)],
        exception_handlers={HTTPException: _not_there, Exception: _broken},
    )


def _without_slash(app: ASGIApp) -> ASGIApp:
    """A path that ends in a slash is the one without: a redirect would lose the body of some clients."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": scope["path"].rstrip("/") or "/"}
        await app(scope, receive, send)

    return answer


async def _not_there(request: Request, error: Exception) -> Response:
    """No such path, or not with this method."""
    assert isinstance(error, HTTPException)
    paths = ", ".join(("/", "/health", "/metrics", "/v1/models", *POSTED))
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "GET")
        said = f"{request.method} is not allowed at {shown(request.url.path)}; allowed: {allowed}"
    else:
        said = f"there is nothing at {shown(request.url.path)}; allowed: {paths}"
    return _failed(ApiError(said, status=error.status_code, headers=error.headers))


async def _broken(_: Request, error: Exception) -> Response:
    """Starlette logs what has failed."""
    return _failed(ApiError("the server has failed at this request; its log says how", status=500))


def _failed(error: ApiError) -> Response:
    return _json(error.body(), error.status, error.headers)


def _json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(as_json(value), status, {"Content-Type": JSON_TYPE, **SAFE, **(headers or {})})


def _model(served: Served) -> dict[str, Any]:
    return {
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "ptxrun",
        "max_model_len": served.context,
    }
