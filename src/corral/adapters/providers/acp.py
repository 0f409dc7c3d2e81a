"""A client of the Agent Client Protocol: JSON-RPC 2.0 with one message per line, over a pipe.

The client does no I/O of its own: the caller feeds the output of the agent and passes a function
that writes to the agent. There is no thread, no event loop and no SDK (its import takes a second).

The client offers the agent no file system and no terminal. A permission request is granted if the
policy contains its class; otherwise it waits for `answer`.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from corral.adapters.providers.facts import (
    DenialFact,
    LimitFact,
    LogFact,
    PermissionFact,
    PlanFact,
    ProviderFact,
    ResultFact,
    SessionFact,
    UsageFact,
)
from corral.adapters.providers.json_lines import (
    MAX_CONTENT,
    MAX_LINE,
    MAX_OPEN_CALLS,
    decode_object,
    extract_text,
    get_dict,
    get_dicts,
    get_int,
    get_micros,
    get_text,
    limit_size,
    shorten,
    text_facts,
    tool_call,
    tool_result,
)
from corral.adapters.providers.limits import parse_limit
from corral.kernel.clock import Clock, SystemClock
from corral.kernel.errors import Conflict, NotFound

PROTOCOL_VERSION = 1
METHOD_NOT_FOUND = -32601
AUTH_REQUIRED = -32000
# Tool kind of the protocol -> approval class of the policy.
APPROVAL_CLASSES = {"edit": "edit", "delete": "edit", "move": "edit", "execute": "run"}
MAX_PLAN_STEPS = 200
MAX_TOOL_CALLS = 100_000  # per prompt
SUCCESSFUL_STOP_REASONS = ("end_turn", "cancelled")


class PromptResult(msgspec.Struct, frozen=True):
    """The end of a prompt; `reason` is the protocol's stop reason, `refused` or `failed`."""

    ok: bool
    reason: str
    message: str | None = None


class AcpClient:
    """One conversation with one agent process, from `initialize` on.

    Call `prompt` again after a `PromptResult`. A result with the reason `failed` is final: this
    process accepts no further prompt.
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
        self._is_denied = denies
        self.session = session
        self._first_prompt = prompt
        self._resumes = session is not None
        self._mcp_servers = mcp_servers or []
        self._clock = clock or SystemClock()
        self._buffer = bytearray()
        self._last_id = 0
        self._pending_requests: dict[int, str] = {}
        """The methods of our pending requests, by request id."""
        self._permissions: dict[str, tuple[Any, list[dict[str, Any]]]] = {}
        """The open requests of the agent, by the keys of their facts."""
        self._permission_count = 0
        self._tools: dict[str, str] = {}
        self._reported_calls: set[str] = set()
        self._text = ""
        self._cost = 0 if not self._resumes else None
        self._cost_now: int | None = None
        self._prompts = 0
        self._can_load = False
        self._is_closed = False

    # -- public interface -------------------------------------------------------------------------

    def start(self) -> None:
        """Send `initialize`. The session and the first prompt follow from the responses."""
        self._request(
            "initialize",
            {
                "protocolVersion": PROTOCOL_VERSION,
                "clientCapabilities": {
                    "fs": {"readTextFile": False, "writeTextFile": False},
                    "terminal": False,
                },
                "clientInfo": {"name": "corral", "version": "1"},
            },
        )

    def feed(self, data: bytes) -> list[ProviderFact | PromptResult]:
        """Return the facts in a chunk of output. Never raises, for any input."""
        facts: list[ProviderFact | PromptResult] = []
        self._buffer += data
        while not self._is_closed and (at := self._buffer.find(b"\n")) >= 0:
            line = bytes(self._buffer[:at])
            del self._buffer[: at + 1]
            facts += self._handle_line(line)
        if len(self._buffer) > MAX_LINE:
            self._buffer.clear()
            facts += self._fail("The agent sent a line that is too long.")
        return facts

    def close(self) -> list[ProviderFact | PromptResult]:
        """Return the remaining facts at the end of the output."""
        if self._is_closed or (not self._pending_requests and self._prompts):
            return []
        return self._fail("The agent exited before it answered.")

    def prompt(self, message: str) -> None:
        """Send a prompt. Raises Conflict while another prompt is running."""
        if (
            self.session is None
            or self._is_closed
            or "session/prompt" in self._pending_requests.values()
        ):
            raise Conflict("The agent is busy. Wait until it has finished the current prompt.")
        self._prompts += 1
        block = {"type": "text", "text": message}
        self._request("session/prompt", {"sessionId": self.session, "prompt": [block]})

    def answer(self, permission: str, option: str | bool) -> None:
        """Answer a `PermissionFact` with one of its options, by name.

        True selects the option that allows this request once; False rejects the request. Raises
        NotFound if the request is no longer open or has no such option.
        """
        if permission not in self._permissions:
            raise NotFound("The permission request is no longer open.", asked=permission)
        request, options = self._permissions.pop(permission)
        if option is False:
            chosen = _find_option(options, "reject_once", "reject_always")
        elif option is True:
            chosen = _find_option(options, "allow_once")
            if chosen is None:
                self._permissions[permission] = (request, options)
                raise NotFound(
                    "The request has no option that allows it once. Choose one of its options.",
                    asked=permission,
                )
        else:
            chosen = next(
                (o for o in options if option in (o.get("name"), o.get("optionId"))), None
            )
            if chosen is None:
                self._permissions[permission] = (request, options)
                raise NotFound(f"The permission request has no option {option!r}.", option=option)
        self._reply(request, _build_outcome(chosen))

    def pending(self) -> list[UsageFact]:
        """Return the cost of the current prompt so far, as the agent reports it."""
        if self._cost_now is None or self._cost is None or self._cost_now <= self._cost:
            return []
        return [UsageFact(None, cost_micros=self._cost_now - self._cost)]

    def cancel(self) -> None:
        """Request the cancellation of the current prompt; its `PromptResult` follows."""
        if self.session is None or self._is_closed:
            return
        self._send({"method": "session/cancel", "params": {"sessionId": self.session}})
        for request, _ in self._permissions.values():
            self._reply(request, _build_outcome(None))
        self._permissions.clear()

    # -- messages ---------------------------------------------------------------------------------

    def _handle_line(self, line: bytes) -> list[ProviderFact | PromptResult]:
        if not line.strip():
            return []
        message = decode_object(line.strip())
        if message is None:
            output = line.decode("utf-8", errors="replace").replace("\0", "\ufffd")
            return [LogFact("info", shorten(output, 4_096))]
        try:
            if "method" in message:
                return self._handle_request(message)
            return self._handle_response(message)
        except (BrokenPipeError, ConnectionError):
            return self._fail("The agent closed its input.")
        except Exception as error:  # untrusted input must not crash the supervisor
            return [
                LogFact("warn", f"Cannot parse a message of the agent: {type(error).__name__}.")
            ]

    def _handle_request(self, message: dict[str, Any]) -> list[ProviderFact | PromptResult]:
        method, request = get_text(message, "method"), message.get("id")
        params = get_dict(message, "params")
        if method == "session/update":
            # Updates during `session/load` replay the earlier conversation.
            if self._is_loading or params.get("sessionId") != self.session:
                return []
            return self._handle_update(get_dict(params, "update"))
        if method == "session/request_permission" and request is not None:
            return self._handle_permission_request(request, params)
        if request is not None:
            refusal = {
                "code": METHOD_NOT_FOUND,
                "message": f"{method} is not supported by this client.",
            }
            self._send({"id": request, "error": refusal})
            return [
                LogFact("warn", f"Rejected a request of the agent: {shorten(str(method), 100)}.")
            ]
        return []

    @property
    def _is_loading(self) -> bool:
        return any(
            method in ("session/load", "session/resume")
            for method in self._pending_requests.values()
        )

    def _handle_response(self, message: dict[str, Any]) -> list[ProviderFact | PromptResult]:
        request_id = message.get("id")
        method = (
            self._pending_requests.pop(request_id, None) if isinstance(request_id, int) else None
        )
        if method is None:
            return []
        if "error" in message:
            return self._handle_error(method, get_dict(message, "error"))
        result = get_dict(message, "result")
        if method == "initialize":
            return self._handle_initialize_result(result)
        if method == "session/prompt":
            return self._handle_prompt_result(result)
        return self._handle_session_result(result)

    # -- the conversation -------------------------------------------------------------------------

    def _handle_initialize_result(
        self, result: dict[str, Any]
    ) -> list[ProviderFact | PromptResult]:
        """Open, resume or load the session; fail if the agent cannot."""
        if get_int(result, "protocolVersion") != PROTOCOL_VERSION:
            return self._fail(
                "The agent uses another version of the Agent Client Protocol. Update the agent."
            )
        session_params = {"cwd": self.cwd, "mcpServers": self._mcp_servers}
        if not self._resumes:
            self._request("session/new", session_params)
            return []
        capabilities = get_dict(result, "agentCapabilities")
        self._can_load = capabilities.get("loadSession") is True
        if isinstance(get_dict(capabilities, "sessionCapabilities").get("resume"), dict):
            self._request("session/resume", {"sessionId": self.session, **session_params})
        elif self._can_load:
            self._request("session/load", {"sessionId": self.session, **session_params})
        else:
            return self._fail("The agent cannot resume a conversation. Start a new one.")
        return []

    def _handle_session_result(self, result: dict[str, Any]) -> list[ProviderFact | PromptResult]:
        """Send the first prompt; return the session."""
        if not self._resumes:
            self.session = get_text(result, "sessionId")
        if self.session is None:
            return self._fail("The agent did not open a session.")
        model = get_text(result, "models", "currentModelId")
        self.prompt(self._first_prompt)
        return [SessionFact(self.session, model=model)]

    def _handle_prompt_result(self, result: dict[str, Any]) -> list[ProviderFact | PromptResult]:
        """Return the rest of the turn, its usage and its result."""
        reason = get_text(result, "stopReason") or "unknown"
        ok = reason in SUCCESSFUL_STOP_REASONS
        facts: list[ProviderFact | PromptResult] = [
            *self._flush(),
            *self._read_usage(get_dict(result, "usage")),
        ]
        self._tools.clear()
        self._reported_calls.clear()
        return [*facts, ResultFact(ok, None if ok else reason), PromptResult(ok, reason)]

    def _read_usage(self, usage: dict[str, Any]) -> list[ProviderFact]:
        """Return the usage of a prompt.

        The agent reports tokens per prompt, but the cost as a running total of the session.
        """
        cost = None
        if self._cost_now is not None:
            cost = self._cost_now - self._cost if self._cost is not None else None
            self._cost = self._cost_now
        used = UsageFact(
            None,
            input=get_int(usage, "inputTokens"),
            output=get_int(usage, "outputTokens"),
            cache_read=get_int(usage, "cachedReadTokens"),
            cache_write=get_int(usage, "cachedWriteTokens"),
            reasoning=get_int(usage, "thoughtTokens"),
            cost_micros=cost,
        )
        return [used] if usage or cost else []

    def _handle_error(
        self, method: str, error: dict[str, Any]
    ) -> list[ProviderFact | PromptResult]:
        """Return the outcome of a request that the agent rejected."""
        summary = get_text(error, "message") or "The agent rejected the request."
        detail = error.get("data")
        more = detail if isinstance(detail, str) else get_text(detail, "message")
        more = more or get_text(detail, "details")
        message = f"{summary}: {more}" if more else summary
        if method == "session/resume" and error.get("code") == METHOD_NOT_FOUND and self._can_load:
            # Some agents announce `session/resume` but do not implement it.
            session_params = {"cwd": self.cwd, "mcpServers": self._mcp_servers}
            self._request("session/load", {"sessionId": self.session, **session_params})
            return []
        if error.get("code") == AUTH_REQUIRED:
            return self._fail(
                f"The agent requires a login. Log in with its own command. ({message})"
            )
        limit = parse_limit(message, self._clock.now())
        if method != "session/prompt":
            return self._fail(message, limit)
        facts: list[ProviderFact | PromptResult] = [*self._flush(), *([limit] if limit else [])]
        return [
            *facts,
            ResultFact(False, shorten(message)),
            PromptResult(False, "refused", shorten(message)),
        ]

    def _fail(
        self, message: str, limit: LimitFact | None = None
    ) -> list[ProviderFact | PromptResult]:
        self._is_closed = True
        self._pending_requests.clear()
        facts: list[ProviderFact | PromptResult] = [*self._flush(), *([limit] if limit else [])]
        return [
            *facts,
            ResultFact(False, shorten(message)),
            PromptResult(False, "failed", shorten(message)),
        ]

    # -- updates ----------------------------------------------------------------------------------

    def _handle_update(self, update: dict[str, Any]) -> list[ProviderFact | PromptResult]:
        """Return the facts that an update completes."""
        kind = get_text(update, "sessionUpdate")
        if kind == "agent_message_chunk":
            self._text += extract_text(update.get("content"))
            return [*self._flush()] if len(self._text) > MAX_CONTENT else []
        facts: list[ProviderFact | PromptResult] = []
        if kind in ("tool_call", "tool_call_update"):
            facts += [*self._flush(), *self._tool(update)]
        elif kind == "plan":
            facts.append(
                PlanFact([_step(entry) for entry in get_dicts(update, "entries")[:MAX_PLAN_STEPS]])
            )
        elif kind == "usage_update" and get_text(update, "cost", "currency") == "USD":
            self._cost_now = get_micros(update, "cost", "amount")
        return facts

    def _flush(self) -> list[ProviderFact]:
        content, self._text = self._text, ""
        return text_facts(content)

    def _tool(self, update: dict[str, Any]) -> list[ProviderFact]:
        """Return a tool call once its arguments are known or it has ended, then its result."""
        call = get_text(update, "toolCallId")
        if call is None or len(self._tools) > MAX_TOOL_CALLS:
            return []
        name = get_text(update, "title") or get_text(update, "kind")
        if name and call not in self._reported_calls:
            self._tools[call] = shorten(name, 200)
        has_ended = get_text(update, "status") in ("completed", "failed")
        facts: list[ProviderFact] = []
        if call not in self._reported_calls and (update.get("rawInput") or has_ended):
            self._reported_calls.add(call)
            facts.append(tool_call(call, self._tools.get(call), update.get("rawInput")))
        if has_ended:
            content = "\n".join(
                extract_text(part.get("content")) for part in get_dicts(update, "content")
            ).strip()
            facts.append(
                tool_result(
                    call,
                    self._tools.get(call),
                    content,
                    result=update.get("rawOutput"),
                    is_error=get_text(update, "status") == "failed",
                )
            )
        return facts

    def _handle_permission_request(
        self, request: Any, params: dict[str, Any]
    ) -> list[ProviderFact | PromptResult]:
        """Answer a request by the deny rules, then by the policy; else it waits for `answer`."""
        call, options = get_dict(params, "toolCall"), get_dicts(params, "options")
        kind = get_text(call, "kind")
        known = self._tools.get(get_text(call, "toolCallId") or "")
        title = shorten(get_text(call, "title") or known or "Permission request", 1_000)
        wanted = APPROVAL_CLASSES.get(kind or "", kind)
        facts: list[ProviderFact | PromptResult] = [*self._flush()]
        if self._is_denied({name for name in (kind, wanted, known, title) if name}):
            self._reply(
                request, _build_outcome(_find_option(options, "reject_once", "reject_always"))
            )
            denied = DenialFact(known or kind or title, get_text(call, "toolCallId"))
            return [*facts, denied, LogFact("warn", f"Denied: {title}", {"tool": kind})]
        once = _find_option(options, "allow_once")
        if once and ("all" in self.policy or wanted in self.policy):
            self._reply(request, _build_outcome(once))
            granted = {"class": wanted, "option": get_text(once, "name")}
            return [*facts, LogFact("info", f"Granted by policy: {title}", granted)]
        if len(self._permissions) >= MAX_OPEN_CALLS:
            self._reply(request, _build_outcome(None))
            return facts
        call_id = get_text(call, "toolCallId") or request
        self._permission_count += 1
        key = f"{self._permission_count}-{call_id}"
        self._permissions[key] = (request, options)
        names = [
            get_text(option, "name") or get_text(option, "optionId") or "?" for option in options
        ]
        fact = PermissionFact(
            key, title, tool=kind, arguments=limit_size(call.get("rawInput")), options=names
        )
        return [*facts, fact]

    # -- writing ----------------------------------------------------------------------------------

    def _request(self, method: str, params: dict[str, Any]) -> None:
        self._last_id += 1
        self._pending_requests[self._last_id] = method
        self._send({"id": self._last_id, "method": method, "params": params})

    def _reply(self, request: Any, result: dict[str, Any]) -> None:
        self._send({"id": request, "result": result})

    def _send(self, message: dict[str, Any]) -> None:
        self._write(msgspec.json.encode({"jsonrpc": "2.0", **message}) + b"\n")


def _step(entry: dict[str, Any]) -> dict[str, str]:
    fields = {name: get_text(entry, name) for name in ("content", "status", "priority")}
    step = {name: shorten(value, 1_000) for name, value in fields.items() if value}
    return {"content": "?"} | step


def _find_option(options: list[dict[str, Any]], *kinds: str) -> dict[str, Any] | None:
    for kind in kinds:
        for option in options:
            if option.get("kind") == kind:
                return option
    return None


def _build_outcome(option: dict[str, Any] | None) -> dict[str, Any]:
    if option is None:
        return {"outcome": {"outcome": "cancelled"}}
    return {"outcome": {"outcome": "selected", "optionId": option.get("optionId")}}
