"""The scripted agent as a server of the Agent Client Protocol (ACP) on stdin and stdout."""

import json
import os
import queue
import sys
import threading
import time
import uuid
from typing import Any

from corral.demo.agent import (
    MODEL,
    PRICES,
    QuotaExceeded,
    ScriptedAgent,
    ScriptedOutput,
    ScriptedSession,
)

PROTOCOL = 1
INVALID = -32602
NO_SUCH_METHOD = -32601
INTERNAL = -32603


class Cancelled(Exception):
    """The client cancelled the prompt."""


class RequestError(Exception):
    """A request fails; the arguments are the JSON-RPC error code and the message."""


class AcpServer:
    """A JSON-RPC server: one thread reads requests, the main thread handles them in order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._replies: queue.Queue[dict[str, Any]] = queue.Queue()
        self._cancelled = threading.Event()
        self._sessions: dict[str, ScriptedSession] = {}
        self.cost: dict[str, float] = {}
        self._asked = 0

    def serve(self) -> int:
        threading.Thread(target=self._read, daemon=True).start()
        while (request := self._requests.get()) is not None:
            try:
                result = self._handle(str(request.get("method")), request.get("params") or {})
                response: dict[str, Any] = {"result": result}
            except RequestError as error:
                code, message = error.args
                response = {"error": {"code": code, "message": message}}
            if "id" in request:
                self.send({"id": request["id"], **response})
        return 0

    def _read(self) -> None:
        for line in sys.stdin:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if not isinstance(message, dict):
                continue
            if "method" not in message:
                self._replies.put(message)
            elif message["method"] == "session/cancel":
                self._cancelled.set()
            else:
                self._requests.put(message)
        self._cancelled.set()
        self._requests.put(None)

    def send(self, message: dict[str, Any]) -> None:
        with self._lock:
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            sys.stdout.flush()

    def update(self, session: str, kind: str, /, **fields: Any) -> None:
        params = {"sessionId": session, "update": {"sessionUpdate": kind, **fields}}
        self.send({"method": "session/update", "params": params})

    def permission(self, session: str, question: str) -> str | None:
        self._asked += 1
        options = [
            {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
            {"optionId": "no", "name": "No", "kind": "reject_once"},
        ]
        call = {"toolCallId": f"ask-{self._asked}", "title": question, "kind": "execute"}
        params = {"sessionId": session, "toolCall": call, "options": options}
        self.send(
            {
                "id": f"permission-{self._asked}",
                "method": "session/request_permission",
                "params": params,
            }
        )
        while True:
            self.check()
            try:
                reply = self._replies.get(timeout=0.05)
            except queue.Empty:
                continue
            self.check()  # the client sends a cancellation before the answers it causes
            outcome = (reply.get("result") or {}).get("outcome") or {}
            return "yes" if outcome.get("optionId") == "yes" else None

    def check(self) -> None:
        if self._cancelled.is_set():
            raise Cancelled

    # -- methods ----------------------------------------------------------------------------------

    def _handle(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        match method:
            case "initialize":
                return {
                    "protocolVersion": PROTOCOL,
                    "agentInfo": {"name": "corral-scripted", "version": "1"},
                    "agentCapabilities": {
                        "loadSession": True,
                        "sessionCapabilities": {"resume": {}},
                    },
                    "authMethods": [],
                }
            case "session/new":
                session = ScriptedSession(str(uuid.uuid4()))
                self._open(session, params)
                return {"sessionId": session.id}
            case "session/load" | "session/resume":
                session = ScriptedSession(str(params.get("sessionId")))
                if not session.exists:
                    raise RequestError(
                        INVALID, f"No conversation found with session ID: {session.id}"
                    )
                self._open(session, params)
                if method == "session/load":
                    self._replay(session)
                return {}
            case "session/prompt":
                return self._prompt(params)
            case _:
                raise RequestError(NO_SUCH_METHOD, f"Unknown method {method}.")

    def _open(self, session: ScriptedSession, params: dict[str, Any]) -> None:
        if os.path.isdir(str(params.get("cwd"))):
            os.chdir(params["cwd"])
        self._sessions[session.id] = session

    def _replay(self, session: ScriptedSession) -> None:
        for turn in session.turns():
            kind = "user_message_chunk" if turn["role"] == "user" else "agent_message_chunk"
            self.update(session.id, kind, content={"type": "text", "text": turn["text"]})

    def _prompt(self, params: dict[str, Any]) -> dict[str, Any]:
        session = self._sessions.get(str(params.get("sessionId")))
        if session is None:
            raise RequestError(INVALID, "Unknown session. Open one first.")
        text = "\n".join(str(part.get("text", "")) for part in params.get("prompt") or [])
        session.add("user", text)
        self._cancelled.clear()
        output = AcpOutput(self, session)
        try:
            AcpAgent(output, self).follow(text)
        except Cancelled:
            return {"stopReason": "cancelled", "usage": output.usage()}
        except QuotaExceeded as error:
            reset = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(error.args[0]))
            raise RequestError(INTERNAL, f"Usage limit reached; try again at {reset}.") from None
        return {"stopReason": "end_turn", "usage": output.usage()}


class AcpOutput(ScriptedOutput):
    def __init__(self, server: AcpServer, session: ScriptedSession) -> None:
        self.server = server
        self.session = session
        self.tokens = [0, 0]
        self._calls = 0

    def say(self, text: str) -> None:
        self.session.add("assistant", text)
        content = {"type": "text", "text": f"{text}\n"}
        self.server.update(self.session.id, "agent_message_chunk", content=content)

    def tool(self, name: str, arguments: dict[str, object], result: str) -> None:
        self._calls += 1
        call = {"toolCallId": f"call-{self._calls}-{uuid.uuid4().hex[:8]}"}
        self.server.update(
            self.session.id,
            "tool_call",
            **call,
            title=name,
            kind="edit",
            status="in_progress",
            rawInput=arguments,
        )
        content = [{"type": "content", "content": {"type": "text", "text": result}}]
        self.server.update(
            self.session.id, "tool_call_update", **call, status="completed", content=content
        )

    def ask(self, question: str) -> str | None:
        return self.server.permission(self.session.id, question)

    def spend(self, tokens_in: int, tokens_out: int, model: str) -> None:
        self.tokens[0] += tokens_in
        self.tokens[1] += tokens_out
        cost = self.server.cost.get(self.session.id, 0.0)
        cost += (tokens_in * PRICES[0] + tokens_out * PRICES[1]) / 1e12
        self.server.cost[self.session.id] = cost
        self.server.update(
            self.session.id,
            "usage_update",
            used=sum(self.tokens),
            size=200_000,
            cost={"amount": cost, "currency": "USD"},
        )

    def usage(self) -> dict[str, int]:
        spent_in, spent_out = self.tokens
        return {
            "inputTokens": spent_in,
            "outputTokens": spent_out,
            "totalTokens": spent_in + spent_out,
        }


class AcpAgent(ScriptedAgent):
    """A scripted agent that reacts to a cancellation while it sleeps."""

    def __init__(self, output: ScriptedOutput, server: AcpServer) -> None:
        super().__init__(output, MODEL)
        self.server = server

    def do_sleep(self, rest: str) -> None:
        end = time.monotonic() + float(rest)
        while (left := end - time.monotonic()) > 0:
            self.server.check()
            time.sleep(min(left, 0.05))

    def do_hang(self, rest: str) -> None:
        self.do_sleep("1e9")


def serve() -> int:
    return AcpServer().serve()
