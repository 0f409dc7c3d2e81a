"""The Model Context Protocol for a server of tools: JSON-RPC in, JSON-RPC out.

Both generations of the protocol are supported. A request whose `_meta` names a version is stateless
(`server/discover`); any other belongs to the protocol with a handshake (`initialize`). Neither
keeps state between requests here, so the same code serves standard input and HTTP.
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from corral import __version__
from corral.kernel.errors import CorralError, StoreUnavailable
from corral.kernel.redaction_policy import redaction_notice
from corral.mcp.call import ToolCall, encode
from corral.mcp.identity import Caller
from corral.mcp.registry import INSTRUCTIONS, ToolSpec, find_tool, list_tools, suggest_tool

if TYPE_CHECKING:
    from corral.api import Corral

STATELESS_VERSIONS = ("2026-07-28",)
HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
META_VERSION = "io.modelcontextprotocol/protocolVersion"
META_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
META_SERVER_INFO = "io.modelcontextprotocol/serverInfo"

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
HEADER_MISMATCH = -32020
UNSUPPORTED_VERSION = -32022

SERVER_INFO = {"name": "corral", "title": "Corral", "version": __version__}
SERVER_CAPABILITIES: dict[str, Any] = {"tools": {}}
TOOL_LIST_TTL_MS = (
    3_600_000  # the list of tools is the same for all callers of one version of Corral
)

Identify = Callable[[], "tuple[Corral, Caller]"]


class RpcEnvelope(msgspec.Struct):
    """A JSON-RPC message. `params` stays encoded until the rest is known to be valid."""

    jsonrpc: str = ""
    id: str | int | msgspec.UnsetType | None = msgspec.UNSET
    method: str | msgspec.UnsetType = msgspec.UNSET
    params: msgspec.Raw = msgspec.Raw(b"{}")


class RpcParams(msgspec.Struct, rename={"meta": "_meta", "request_id": "requestId"}):
    """The parameters that this server reads, of all methods."""

    meta: dict[str, Any] | None = None
    name: str | None = None
    uri: str | None = None
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    protocolVersion: str | None = None
    request_id: str | int | None = None


class RpcError(Exception):
    """A JSON-RPC error: the message itself is wrong. Failures of a tool are results instead."""

    def __init__(
        self, code: int, message: str, data: Any = None, *, id: str | int | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.id = id
        """The id of the message, when only that could be decoded."""


class RpcMessage(NamedTuple):
    """A valid request or notification."""

    id: str | int | None
    method: str
    params: RpcParams

    @property
    def version(self) -> Any:
        """The protocol version that a stateless request names; otherwise None."""
        return (self.params.meta or {}).get(META_VERSION)

    @property
    def tool(self) -> ToolSpec | None:
        """The tool that the message calls."""
        name = self.method == "tools/call" and self.params.name
        return find_tool(name) if name else None


class RpcResponse(NamedTuple):
    """An encoded response."""

    body: bytes
    code: int = 0
    """The error code; 0 for a result."""


_decode_envelope = msgspec.json.Decoder(RpcEnvelope).decode
_decode_params = msgspec.json.Decoder(RpcParams).decode


def parse_message(line: bytes) -> RpcMessage:
    """Decode a message; raises RpcError.

    Some clients send lone surrogates: if decoding fails, it is tried again without them.
    """
    try:
        return _parse(line)
    except RpcError as error:
        if error.code != PARSE_ERROR:
            raise
        from corral.kernel.validation import replace_invalid_utf8

        try:
            return _parse(replace_invalid_utf8(line))
        except (ValueError, RecursionError):
            raise error from None


def _parse(line: bytes) -> RpcMessage:
    try:
        line.decode()  # the decoder does not validate the text of `params`
        envelope = _decode_envelope(line)
    except msgspec.ValidationError as error:
        raise RpcError(INVALID_REQUEST, f"Invalid JSON-RPC message: {error}.") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise RpcError(
            PARSE_ERROR, "The message is not valid JSON or is nested too deeply."
        ) from None
    if envelope.jsonrpc != "2.0" or envelope.method is msgspec.UNSET or envelope.id is None:
        raise RpcError(
            INVALID_REQUEST, 'Send {"jsonrpc": "2.0", "id": …, "method": …}, one per message.'
        )
    id = None if envelope.id is msgspec.UNSET else envelope.id
    try:
        params = _decode_params(envelope.params)
    except (msgspec.DecodeError, RecursionError) as error:
        if id is None:  # a notification never gets a response, not even an error
            return RpcMessage(None, envelope.method, RpcParams())
        raise RpcError(INVALID_PARAMS, f"Invalid params: {error}.", id=id) from None
    return RpcMessage(id, envelope.method, params)


def error_response(error: RpcError, id: str | int | None = None) -> RpcResponse:
    """Encode an error as the response to the message with `id`."""
    fields: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.data is not None:
        fields["data"] = error.data
    body = encode({"jsonrpc": "2.0", "id": id if error.id is None else error.id, "error": fields})
    return RpcResponse(body, error.code)


NEVER_CANCELLED = threading.Event()
"""For calls that do not wait."""


def handle_message(
    message: RpcMessage, identify: Identify, cancelled: threading.Event = NEVER_CANCELLED
) -> RpcResponse:
    """Handle a request and return its response; never raises.

    Set `cancelled` when the client no longer waits for the response.
    """
    try:
        is_stateless = _check_version(message)
        method = METHODS.get(message.method)
        if method is None or (is_stateless and message.method in ("initialize", "ping")):
            raise RpcError(METHOD_NOT_FOUND, f"Unknown method {message.method!r}.")
        result = method(message, identify, cancelled)
    except RpcError as error:
        return error_response(error, message.id)
    except Exception as error:
        text = _log_internal_error(message.method, error).message
        return error_response(RpcError(INTERNAL_ERROR, text), message.id)
    if is_stateless:
        result |= {"resultType": "complete", "_meta": result.get("_meta", {}) | _SERVER_META}
        if message.method in ("tools/list", "server/discover"):
            result |= {"ttlMs": TOOL_LIST_TTL_MS, "cacheScope": "public"}
    return RpcResponse(encode({"jsonrpc": "2.0", "id": message.id, "result": result}))


_SERVER_META = {META_SERVER_INFO: SERVER_INFO}


def _check_version(message: RpcMessage) -> bool:
    """Return whether the request is stateless; raises RpcError for an unsupported version."""
    meta = message.params.meta
    if meta is None or META_VERSION not in meta:
        if message.method == "server/discover":
            raise RpcError(
                INVALID_PARAMS,
                f"params._meta must contain {META_VERSION!r} and {META_CAPABILITIES!r}.",
            )
        return False
    version = meta[META_VERSION]
    if META_CAPABILITIES not in meta or not isinstance(version, str):
        raise RpcError(INVALID_PARAMS, f"params._meta must contain {META_CAPABILITIES!r} too.")
    if version not in STATELESS_VERSIONS:
        data = {"supported": [*STATELESS_VERSIONS], "requested": version}
        raise RpcError(UNSUPPORTED_VERSION, "Unsupported protocol version", data)
    return True


# -- methods -----------------------------------------------------------------------------------


def _initialize(
    message: RpcMessage, identify: Identify, cancelled: threading.Event
) -> dict[str, Any]:
    version = message.params.protocolVersion
    if version is None:
        raise RpcError(INVALID_PARAMS, "params.protocolVersion is missing.")
    return {
        "protocolVersion": version if version in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1],
        "capabilities": SERVER_CAPABILITIES,
        "serverInfo": SERVER_INFO,
        "instructions": INSTRUCTIONS,
    }


def _discover(
    message: RpcMessage, identify: Identify, cancelled: threading.Event
) -> dict[str, Any]:
    return {
        "supportedVersions": [*STATELESS_VERSIONS],
        "capabilities": SERVER_CAPABILITIES,
        "instructions": INSTRUCTIONS,
    }


def _ping(message: RpcMessage, identify: Identify, cancelled: threading.Event) -> dict[str, Any]:
    return {}


def _list(message: RpcMessage, identify: Identify, cancelled: threading.Event) -> dict[str, Any]:
    return {"tools": list_tools()}


def _call(message: RpcMessage, identify: Identify, cancelled: threading.Event) -> dict[str, Any]:
    if message.params.name is None:
        raise RpcError(INVALID_PARAMS, "params.name is missing: name the tool to call.")
    tool = message.tool
    if tool is None:
        hint = suggest_tool(message.params.name)
        raise RpcError(INVALID_PARAMS, f"Unknown tool {message.params.name!r}. {hint}")
    redacted: list[str] = []
    try:
        arguments = tool.decode(message.params.arguments)
        store, caller = identify()
        with store.report_redactions(redacted.extend):
            body = encode(tool.run(ToolCall(store, caller, tool.name, cancelled), arguments))
    except CorralError as error:
        return _error_result(error)
    except Exception as error:
        return _error_result(_log_internal_error(tool.name, error))
    # The text repeats the result, for clients that do not show structured content.
    texts = [body.decode(), *([redaction_notice(redacted)] if redacted else [])]
    result = {
        "content": [{"type": "text", "text": text} for text in texts],
        "structuredContent": msgspec.Raw(body),
        "isError": False,
    }
    if redacted:
        result["_meta"] = {"corral/redacted": [*dict.fromkeys(redacted)]}
    return result


def _error_result(error: CorralError) -> dict[str, Any]:
    """Return a failed tool call: a message that the agent can act on."""
    text = error.message
    if isinstance(error, StoreUnavailable):
        text += " Nothing was changed. Try again later, or inform the person you work for."
    return {
        "content": [{"type": "text", "text": text}],
        "isError": True,
        "_meta": {"corral/error": {"code": error.code, "details": error.details}},
    }


def _log_internal_error(name: str, error: Exception) -> CorralError:
    import logging

    logging.getLogger("corral.mcp").error("%s failed", name, exc_info=error)
    return CorralError(
        f"Internal error in {name} ({type(error).__name__}). Continue without it, and inform the "
        "person you work for."
    )


METHODS: dict[str, Callable[[RpcMessage, Identify, threading.Event], dict[str, Any]]] = {
    "initialize": _initialize,
    "ping": _ping,
    "server/discover": _discover,
    "tools/list": _list,
    "tools/call": _call,
}
