"""The base class of all middleware, and the paths that are treated differently."""

from abc import ABC, abstractmethod

from corral.asgi import AsgiApp, Receive, Scope, Send

STATIC = "/static/"  # readable without a token: the page that asks for one is styled
WEBHOOKS = "/channels/"  # chat platforms sign their requests instead of using a token
AGENT_PATHS = ("/api", "/mcp")  # an agent's token may use these paths and those below them
JSON_PATHS = ("/api", WEBHOOKS, "/healthz", "/mcp", "/metrics")  # errors are JSON, not a page


class HttpMiddleware(ABC):
    """Middleware for HTTP requests: passes lifespan events on, and refuses websockets."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._handle(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    @abstractmethod
    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, usually by calling `self._app`; raises ApiError to refuse it."""


def is_agent_path(path: str) -> bool:
    """Whether an agent's token may use a path."""
    return any(path == prefix or path.startswith(f"{prefix}/") for prefix in AGENT_PATHS)


def find_client_address(scope: Scope) -> str:
    """Return the address of the client; empty if it is unknown."""
    client = scope.get("client")
    return str(client[0]) if client else ""
