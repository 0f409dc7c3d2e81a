"""A client of the Agent Client Protocol: JSON-RPC 2.0, a line for each message, over a pipe.

It is driven from outside: what the agent prints is fed in, what is to be written goes through a
function that is handed in. No thread, no event loop, no SDK (whose import takes a second).

The agent gets no file and no terminal from us; it has those of its own. What it asks leave for is
granted when its class was allowed beforehand, and otherwise waits for `answer`.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from corral.adapters.providers.facts import (
    Asked,
    Denied,
    Fact,
    Finished,
    LimitReached,
    Logged,
    Planned,
    SessionNamed,
    Used,
)
from corral.adapters.providers.limits import limit_in
from corral.adapters.providers.lines import (
    MAX_CONTENT,
    MAX_LINE,
    MAX_OPEN,
    answered,
    bounded,
    called,
    decode,
    micros,
    number,
    rows,
    said,
    shorten,
    table,
    text,
    words_in,
)
from corral.kernel.clock import Clock, SystemClock
from corral.kernel.errors import Conflict, NotFound

PROTOCOL = 1
NO_SUCH_METHOD = -32601
LOGIN_NEEDED = -32000
# What a tool does, in the protocol's words, and what a policy calls it.
CLASSES = {"edit": "edit", "delete": "edit", "move": "edit", "execute": "run"}
MAX_STEPS = 200  # of a plan
MAX_TOOLS = 100_000  # in one prompt
GOOD_ENDS = ("end_turn", "cancelled")


class Done(msgspec.Struct, frozen=True):
    """The prompt has been dealt with, or never will be; `reason` is the protocol's word for it."""

    ok: bool
    reason: str
    message: str | None = None


class AcpTalk:
    """One conversation with one agent process, from `initialize` on.

    `prompt` may be said again when it is done. After a `Done` that is not ok and whose reason is
    `failed` there is nothing more to say to this process.
    """

    def __init__(
        self,
        write: Callable[[bytes], None],
        *,
        cwd: str,
        prompt: str,
        session: str | None = None,
        policy: frozenset[str] = frozenset(),
        denies: Callable[[set[str]], bool] = lambda names: False,
        mcp_servers: list[dict[str, Any]] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._write = write
        self.cwd = cwd
        self.policy = policy
        self._denies = denies
        self.session = session
        self._first = prompt
        self._resumes = session is not None
        self._servers = mcp_servers or []
        self._clock = clock or SystemClock()
        self._buffer = bytearray()
        self._next = 0
        self._waiting: dict[int, str] = {}
        """Our requests that have no answer yet, by number: the method."""
        self._asked: dict[str, tuple[Any, list[dict[str, Any]]]] = {}
        self._tools: dict[str, str] = {}
        self._told: set[str] = set()
        self._words = ""
        self._cost = 0 if not self._resumes else None
        self._cost_now: int | None = None
        self._prompts = 0
        self._loads = False
        self._over = False

    # -- what the keeper calls --------------------------------------------------------------------

    def start(self) -> None:
        self._request(
            "initialize",
            {
                "protocolVersion": PROTOCOL,
                "clientCapabilities": {
                    "fs": {"readTextFile": False, "writeTextFile": False},
                    "terminal": False,
                },
                "clientInfo": {"name": "corral", "version": "1"},
            },
        )

    def feed(self, data: bytes) -> list[Fact | Done]:
        """What the agent printed says. Never raises, whatever it is."""
        facts: list[Fact | Done] = []
        self._buffer += data
        while not self._over and (at := self._buffer.find(b"\n")) >= 0:
            line = bytes(self._buffer[:at])
            del self._buffer[: at + 1]
            facts += self._line(line)
        if len(self._buffer) > MAX_LINE:
            self._buffer.clear()
            facts += self._fail("The agent sent a line that has no end.")
        return facts

    def close(self) -> list[Fact | Done]:
        """The agent's output has ended."""
        if self._over or (not self._waiting and self._prompts):
            return []
        return self._fail("The agent ended before it had answered.")

    def prompt(self, words: str) -> None:
        if self.session is None or self._over or "session/prompt" in self._waiting.values():
            raise Conflict("The agent cannot take a prompt now; wait until it is done.")
        self._prompts += 1
        block = {"type": "text", "text": words}
        self._request("session/prompt", {"sessionId": self.session, "prompt": [block]})

    def answer(self, asked: str, option: str | bool) -> None:
        """Answer an `Asked` with one of its options, by name.

        True selects the option that allows this request once; False refuses the request.
        """
        if asked not in self._asked:
            raise NotFound("The agent does not ask that any more.", asked=asked)
        request, options = self._asked.pop(asked)
        if option is False:
            chosen = _of_kind(options, "reject_once", "reject_always")
        elif option is True:
            chosen = _of_kind(options, "allow_once")
            if chosen is None:
                self._asked[asked] = (request, options)
                raise NotFound(
                    "The request has no option that allows it once. Choose one of its options.",
                    asked=asked,
                )
        else:
            chosen = next(
                (o for o in options if option in (o.get("name"), o.get("optionId"))), None
            )
            if chosen is None:
                self._asked[asked] = (request, options)
                raise NotFound(f"There is no option {option!r} to choose.", option=option)
        self._reply(request, _outcome(chosen))

    def pending(self) -> list[Used]:
        """What the agent says to have spent in this prompt so far."""
        if self._cost_now is None or self._cost is None or self._cost_now <= self._cost:
            return []
        return [Used(None, cost_micros=self._cost_now - self._cost)]

    def cancel(self) -> None:
        """Ask the agent to stop what it does; it then says that it is done."""
        if self.session is None or self._over:
            return
        self._send({"method": "session/cancel", "params": {"sessionId": self.session}})
        for request, _ in self._asked.values():
            self._reply(request, _outcome(None))
        self._asked.clear()

    # -- lines ------------------------------------------------------------------------------------

    def _line(self, line: bytes) -> list[Fact | Done]:
        if not line.strip():
            return []
        message = decode(line.strip())
        if message is None:
            told = line.decode("utf-8", errors="replace").replace("\0", "\ufffd")
            return [Logged("info", shorten(told, 4_096))]
        try:
            if "method" in message:
                return self._called(message)
            return self._replied(message)
        except (BrokenPipeError, ConnectionError):
            return self._fail("The agent no longer listens.")
        except Exception as error:  # a stranger's words must not end the one who reads them
            return [Logged("warn", f"A message was not understood: {type(error).__name__}.")]

    def _called(self, message: dict[str, Any]) -> list[Fact | Done]:
        method, request = text(message, "method"), message.get("id")
        params = table(message, "params")
        if method == "session/update":
            # What comes while a conversation is loaded has been said before.
            if self._loading or params.get("sessionId") != self.session:
                return []
            return self._update(table(params, "update"))
        if method == "session/request_permission" and request is not None:
            return self._permission(request, params)
        if request is not None:
            refusal = {"code": NO_SUCH_METHOD, "message": f"{method} is not offered here."}
            self._send({"id": request, "error": refusal})
            return [Logged("warn", f"The agent asked for {shorten(str(method), 100)}: refused.")]
        return []

    @property
    def _loading(self) -> bool:
        return any(
            method in ("session/load", "session/resume") for method in self._waiting.values()
        )

    def _replied(self, message: dict[str, Any]) -> list[Fact | Done]:
        number_of = message.get("id")
        method = self._waiting.pop(number_of, None) if isinstance(number_of, int) else None
        if method is None:
            return []
        if "error" in message:
            return self._refused(method, table(message, "error"))
        result = table(message, "result")
        if method == "initialize":
            return self._initialized(result)
        if method == "session/prompt":
            return self._answered(result)
        return self._opened(result)

    # -- the conversation -------------------------------------------------------------------------

    def _initialized(self, result: dict[str, Any]) -> list[Fact | Done]:
        if number(result, "protocolVersion") != PROTOCOL:
            return self._fail("The agent speaks another version of the protocol; update it.")
        place = {"cwd": self.cwd, "mcpServers": self._servers}
        if not self._resumes:
            self._request("session/new", place)
            return []
        able = table(result, "agentCapabilities")
        self._loads = able.get("loadSession") is True
        if isinstance(table(able, "sessionCapabilities").get("resume"), dict):
            self._request("session/resume", {"sessionId": self.session, **place})
        elif self._loads:
            self._request("session/load", {"sessionId": self.session, **place})
        else:
            return self._fail("The agent cannot resume a conversation; begin a new one.")
        return []

    def _opened(self, result: dict[str, Any]) -> list[Fact | Done]:
        if not self._resumes:
            self.session = text(result, "sessionId")
        if self.session is None:
            return self._fail("The agent opened no session.")
        model = text(result, "models", "currentModelId")
        self.prompt(self._first)
        return [SessionNamed(self.session, model=model)]

    def _answered(self, result: dict[str, Any]) -> list[Fact | Done]:
        reason = text(result, "stopReason") or "unknown"
        ok = reason in GOOD_ENDS
        facts: list[Fact | Done] = [*self._flush(), *self._used(table(result, "usage"))]
        self._tools.clear()
        self._told.clear()
        return [*facts, Finished(ok, None if ok else reason), Done(ok, reason)]

    def _used(self, usage: dict[str, Any]) -> list[Fact]:
        """Tokens are told for each prompt, the cost for the whole session so far."""
        cost = None
        if self._cost_now is not None:
            cost = self._cost_now - self._cost if self._cost is not None else None
            self._cost = self._cost_now
        used = Used(
            None,
            input=number(usage, "inputTokens"),
            output=number(usage, "outputTokens"),
            cache_read=number(usage, "cachedReadTokens"),
            cache_write=number(usage, "cachedWriteTokens"),
            reasoning=number(usage, "thoughtTokens"),
            cost_micros=cost,
        )
        return [used] if usage or cost else []

    def _refused(self, method: str, error: dict[str, Any]) -> list[Fact | Done]:
        told = text(error, "message") or "The agent refused."
        detail = error.get("data")
        more = detail if isinstance(detail, str) else text(detail, "message")
        more = more or text(detail, "details")
        whole = f"{told}: {more}" if more else told
        if method == "session/resume" and error.get("code") == NO_SUCH_METHOD and self._loads:
            # Some agents promise it and do not have it.
            place = {"cwd": self.cwd, "mcpServers": self._servers}
            self._request("session/load", {"sessionId": self.session, **place})
            return []
        if error.get("code") == LOGIN_NEEDED:
            return self._fail(f"The agent wants a login; log in with its own command. ({whole})")
        limit = limit_in(whole, self._clock.now())
        if method != "session/prompt":
            return self._fail(whole, limit)
        facts: list[Fact | Done] = [*self._flush(), *([limit] if limit else [])]
        return [*facts, Finished(False, shorten(whole)), Done(False, "refused", shorten(whole))]

    def _fail(self, told: str, limit: LimitReached | None = None) -> list[Fact | Done]:
        self._over = True
        self._waiting.clear()
        facts: list[Fact | Done] = [*self._flush(), *([limit] if limit else [])]
        return [*facts, Finished(False, shorten(told)), Done(False, "failed", shorten(told))]

    # -- updates ----------------------------------------------------------------------------------

    def _update(self, update: dict[str, Any]) -> list[Fact | Done]:
        kind = text(update, "sessionUpdate")
        if kind == "agent_message_chunk":
            self._words += words_in(update.get("content"))
            return [*self._flush()] if len(self._words) > MAX_CONTENT else []
        facts: list[Fact | Done] = []
        if kind in ("tool_call", "tool_call_update"):
            facts += [*self._flush(), *self._tool(update)]
        elif kind == "plan":
            facts.append(Planned([_step(entry) for entry in rows(update, "entries")[:MAX_STEPS]]))
        elif kind == "usage_update" and text(update, "cost", "currency") == "USD":
            self._cost_now = micros(update, "cost", "amount")
        return facts

    def _flush(self) -> list[Fact]:
        whole, self._words = self._words, ""
        return said(whole)

    def _tool(self, update: dict[str, Any]) -> list[Fact]:
        """A call is told once its arguments are known, or at its end; then its outcome."""
        call = text(update, "toolCallId")
        if call is None or len(self._tools) > MAX_TOOLS:
            return []
        name = text(update, "title") or text(update, "kind")
        if name and call not in self._told:
            self._tools[call] = shorten(name, 200)
        over = text(update, "status") in ("completed", "failed")
        facts: list[Fact] = []
        if call not in self._told and (update.get("rawInput") or over):
            self._told.add(call)
            facts.append(called(call, self._tools.get(call), update.get("rawInput")))
        if over:
            content = "\n".join(
                words_in(part.get("content")) for part in rows(update, "content")
            ).strip()
            facts.append(
                answered(
                    call,
                    self._tools.get(call),
                    content,
                    result=update.get("rawOutput"),
                    is_error=text(update, "status") == "failed",
                )
            )
        return facts

    def _permission(self, request: Any, params: dict[str, Any]) -> list[Fact | Done]:
        call, options = table(params, "toolCall"), rows(params, "options")
        kind = text(call, "kind")
        known = self._tools.get(text(call, "toolCallId") or "")
        title = shorten(text(call, "title") or known or "It asks for leave.", 1_000)
        wanted = CLASSES.get(kind or "", kind)
        facts: list[Fact | Done] = [*self._flush()]
        if self._denies({name for name in (kind, wanted, known, title) if name}):
            self._reply(request, _outcome(_of_kind(options, "reject_once", "reject_always")))
            denied = Denied(known or kind or title, text(call, "toolCallId"))
            return [*facts, denied, Logged("warn", f"Denied: {title}", {"tool": kind})]
        once = _of_kind(options, "allow_once")
        if once and ("all" in self.policy or wanted in self.policy):
            self._reply(request, _outcome(once))
            granted = {"class": wanted, "option": text(once, "name")}
            return [*facts, Logged("info", f"Granted by policy: {title}", granted)]
        if len(self._asked) >= MAX_OPEN:
            self._reply(request, _outcome(None))
            return facts
        key = f"{self._prompts}-{len(self._asked) + 1}-{text(call, 'toolCallId') or request}"
        self._asked[key] = (request, options)
        names = [text(option, "name") or text(option, "optionId") or "?" for option in options]
        asked = Asked(key, title, tool=kind, arguments=bounded(call.get("rawInput")), options=names)
        return [*facts, asked]

    # -- writing ----------------------------------------------------------------------------------

    def _request(self, method: str, params: dict[str, Any]) -> None:
        self._next += 1
        self._waiting[self._next] = method
        self._send({"id": self._next, "method": method, "params": params})

    def _reply(self, request: Any, result: dict[str, Any]) -> None:
        self._send({"id": request, "result": result})

    def _send(self, message: dict[str, Any]) -> None:
        self._write(msgspec.json.encode({"jsonrpc": "2.0", **message}) + b"\n")


def _step(entry: dict[str, Any]) -> dict[str, str]:
    told = {name: text(entry, name) for name in ("content", "status", "priority")}
    step = {name: shorten(value, 1_000) for name, value in told.items() if value}
    return {"content": "?"} | step


def _of_kind(options: list[dict[str, Any]], *kinds: str) -> dict[str, Any] | None:
    for kind in kinds:
        for option in options:
            if option.get("kind") == kind:
                return option
    return None


def _outcome(option: dict[str, Any] | None) -> dict[str, Any]:
    if option is None:
        return {"outcome": {"outcome": "cancelled"}}
    return {"outcome": {"outcome": "selected", "optionId": option.get("optionId")}}
