"""The Model Context Protocol, as far as a server of tools speaks it: JSON-RPC in, JSON-RPC out.

Both eras in one: a request whose `_meta` names a version is of the newer one, in which every
request stands for itself (`server/discover`); any other belongs to the older one (`initialize`).
Nothing is remembered between requests in either, so the same code serves standard input and HTTP.
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from corral import __version__
from corral.interfaces.mcp.call import Call, encode
from corral.interfaces.mcp.identity import Caller
from corral.interfaces.mcp.tools import INSTRUCTIONS, Tool, find, near, tools
from corral.kernel.errors import CorralError, StoreUnavailable
from corral.kernel.redaction_policy import taken_out

if TYPE_CHECKING:
    from corral.library import Corral

MODERN = ("2026-07-28",)
OLDER = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
SERVER = "io.modelcontextprotocol/serverInfo"

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
HEADER_MISMATCH = -32020
UNSUPPORTED_VERSION = -32022

SERVER_INFO = {"name": "corral", "title": "Corral", "version": __version__}
CAN: dict[str, Any] = {"tools": {}}
TTL_MS = 3_600_000  # the list of tools is the same for everybody, as long as this program is

Identify = Callable[[], "tuple[Corral, Caller]"]


class Envelope(msgspec.Struct):
    """A message; what it holds is looked at when its method is known."""

    jsonrpc: str = ""
    id: str | int | msgspec.UnsetType | None = msgspec.UNSET
    method: str | msgspec.UnsetType = msgspec.UNSET
    params: msgspec.Raw = msgspec.Raw(b"{}")


class Params(msgspec.Struct, rename={"meta": "_meta", "request_id": "requestId"}):
    """What Corral looks at in any request."""

    meta: dict[str, Any] | None = None
    name: str | None = None
    uri: str | None = None
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    protocolVersion: str | None = None
    request_id: str | int | None = None


class Failure(Exception):
    """An answer that says what is wrong with the message itself."""

    def __init__(
        self, code: int, message: str, data: Any = None, *, id: str | int | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.id = id
        """Of the message, where it is known when nothing else is."""


class Message(NamedTuple):
    """A message that was understood so far."""

    id: str | int | None
    method: str
    params: Params

    @property
    def version(self) -> Any:
        """The version that it names; None in the older era."""
        return (self.params.meta or {}).get(VERSION)

    @property
    def tool(self) -> Tool | None:
        """The tool that it calls."""
        called = self.method == "tools/call" and self.params.name
        return find(called) if called else None


class Answer(NamedTuple):
    body: bytes
    code: int = 0
    """Of the error that it is; 0 when it is none."""


_envelope = msgspec.json.Decoder(Envelope).decode
_params = msgspec.json.Decoder(Params).decode


def read(line: bytes) -> Message:
    """Understand a message; Failure says what is wrong with it."""
    try:
        return _read(line)
    except Failure as failure:
        if failure.code != PARSE_ERROR:
            raise
        from corral.kernel.text import in_whole_characters

        try:
            return _read(in_whole_characters(line))
        except (ValueError, RecursionError):
            raise failure from None


def _read(line: bytes) -> Message:
    try:
        line.decode()  # what is kept for later is not looked at yet
        found = _envelope(line)
    except msgspec.ValidationError as error:
        raise Failure(INVALID_REQUEST, f"This is no JSON-RPC message: {error}.") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise Failure(PARSE_ERROR, "This is no JSON that can be understood.") from None
    if found.jsonrpc != "2.0" or found.method is msgspec.UNSET or found.id is None:
        raise Failure(
            INVALID_REQUEST, 'Send {"jsonrpc": "2.0", "id": …, "method": …}, one in a message.'
        )
    id = None if found.id is msgspec.UNSET else found.id
    try:
        params = _params(found.params)
    except (msgspec.DecodeError, RecursionError) as error:
        if id is None:
            return Message(None, found.method, Params())  # a notice gets no answer, whatever it is
        words = f"The params cannot be understood: {error}."
        raise Failure(INVALID_PARAMS, words, id=id) from None
    return Message(id, found.method, params)


def refusal(error: Failure, id: str | int | None = None) -> Answer:
    """The answer to a message that cannot be worked on."""
    told: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.data is not None:
        told["data"] = error.data
    return Answer(encode({"jsonrpc": "2.0", "id": error.id or id, "error": told}), error.code)


NEVER = threading.Event()
"""For a caller who is answered at once."""


def answer(message: Message, identify: Identify, gone: threading.Event = NEVER) -> Answer:
    """Do what a request asks for; never raises. `gone` is set when its caller waits no longer."""
    try:
        modern = _check_era(message)
        work = METHODS.get(message.method)
        if work is None or (modern and message.method in ("initialize", "ping")):
            raise Failure(METHOD_NOT_FOUND, f"There is no method {message.method!r} here.")
        result = work(message, identify, gone)
    except Failure as error:
        return refusal(error, message.id)
    except Exception as error:
        words = _mistake(message.method, error).message
        return refusal(Failure(INTERNAL_ERROR, words), message.id)
    if modern:
        result |= {"resultType": "complete", "_meta": result.get("_meta", {}) | _STAMP}
        if message.method in ("tools/list", "server/discover"):
            result |= {"ttlMs": TTL_MS, "cacheScope": "public"}
    return Answer(encode({"jsonrpc": "2.0", "id": message.id, "result": result}))


_STAMP = {SERVER: SERVER_INFO}


def _check_era(message: Message) -> bool:
    """Whether it is of the newer era; Failure when it is of one that is not spoken here."""
    meta = message.params.meta
    if meta is None or VERSION not in meta:
        if message.method == "server/discover":
            raise Failure(
                INVALID_PARAMS, f"params._meta must hold {VERSION!r} and {CAPABILITIES!r}."
            )
        return False
    version = meta[VERSION]
    if CAPABILITIES not in meta or not isinstance(version, str):
        raise Failure(INVALID_PARAMS, f"params._meta must hold {CAPABILITIES!r} too.")
    if version not in MODERN:
        data = {"supported": [*MODERN], "requested": version}
        raise Failure(UNSUPPORTED_VERSION, "Unsupported protocol version", data)
    return True


def _initialize(message: Message, identify: Identify, gone: threading.Event) -> dict[str, Any]:
    asked = message.params.protocolVersion
    if asked is None:
        raise Failure(INVALID_PARAMS, "Say which protocolVersion you speak.")
    return {
        "protocolVersion": asked if asked in OLDER else OLDER[-1],
        "capabilities": CAN,
        "serverInfo": SERVER_INFO,
        "instructions": INSTRUCTIONS,
    }


def _discover(message: Message, identify: Identify, gone: threading.Event) -> dict[str, Any]:
    return {"supportedVersions": [*MODERN], "capabilities": CAN, "instructions": INSTRUCTIONS}


def _ping(message: Message, identify: Identify, gone: threading.Event) -> dict[str, Any]:
    return {}


def _list(message: Message, identify: Identify, gone: threading.Event) -> dict[str, Any]:
    return {"tools": tools()}


def _call(message: Message, identify: Identify, gone: threading.Event) -> dict[str, Any]:
    if message.params.name is None:
        raise Failure(INVALID_PARAMS, "Say which tool: params.name is missing.")
    tool = message.tool
    if tool is None:
        hint = near(message.params.name)
        raise Failure(INVALID_PARAMS, f"There is no tool {message.params.name!r}; {hint}.")
    taken: list[str] = []
    try:
        asked = tool.read(message.params.arguments)
        store, caller = identify()
        with store.telling(taken.extend):
            body = encode(tool.run(Call(store, caller, tool.name, gone), asked))
    except CorralError as error:
        return _unable(error)
    except Exception as error:
        return _unable(_mistake(tool.name, error))
    # The text is the same once more, for clients that show no structured content.
    words = [body.decode(), *([taken_out(taken)] if taken else [])]
    told = {
        "content": [{"type": "text", "text": each} for each in words],
        "structuredContent": msgspec.Raw(body),
        "isError": False,
    }
    if taken:
        told["_meta"] = {"corral/redacted": [*dict.fromkeys(taken)]}
    return told


def _unable(error: CorralError) -> dict[str, Any]:
    """What the agent reads when it could not be done: one sentence that names the next step."""
    words = error.message
    if isinstance(error, StoreUnavailable):
        words += " Nothing was done; try again in a while, or tell the person you work for."
    return {
        "content": [{"type": "text", "text": words}],
        "isError": True,
        "_meta": {"corral/error": {"code": error.code, "details": error.details}},
    }


def _mistake(what: str, error: Exception) -> CorralError:
    import logging

    logging.getLogger("corral.mcp").error("%s failed", what, exc_info=error)
    return CorralError(
        f"Corral made a mistake in {what} ({type(error).__name__}); go on without it, and tell the "
        "person you work for."
    )


METHODS: dict[str, Callable[[Message, Identify, threading.Event], dict[str, Any]]] = {
    "initialize": _initialize,
    "ping": _ping,
    "server/discover": _discover,
    "tools/list": _list,
    "tools/call": _call,
}
