"""The scripted agent's other language: the Agent Client Protocol on standard input and output."""

import json
import os
import queue
import sys
import threading
import time
import uuid
from typing import Any

from corral.demo.agent import MODEL, PRICES, Agent, Face, Quota, Session

PROTOCOL = 1
INVALID = -32602
NO_SUCH_METHOD = -32601
INTERNAL = -32603


class Cancelled(Exception):
    """The client wants no more of this prompt."""


class Refused(Exception):
    """A request that cannot be met: its code and why."""


class Server:
    """One thread reads; the prompts are obeyed, one after the other, by the main one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._replies: queue.Queue[dict[str, Any]] = queue.Queue()
        self._cancelled = threading.Event()
        self._sessions: dict[str, Session] = {}
        self.cost: dict[str, float] = {}
        self._asked = 0

    def serve(self) -> int:
        threading.Thread(target=self._read, daemon=True).start()
        while (request := self._requests.get()) is not None:
            try:
                result = self._handle(str(request.get("method")), request.get("params") or {})
                answer: dict[str, Any] = {"result": result}
            except Refused as refused:
                code, told = refused.args
                answer = {"error": {"code": code, "message": told}}
            if "id" in request:
                self.send({"id": request["id"], **answer})
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

    def update(self, session: str, what: str, /, **rest: Any) -> None:
        params = {"sessionId": session, "update": {"sessionUpdate": what, **rest}}
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
            self.check()  # a cancellation comes before the answers that it makes
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
                session = Session(str(uuid.uuid4()))
                self._open(session, params)
                return {"sessionId": session.id}
            case "session/load" | "session/resume":
                session = Session(str(params.get("sessionId")))
                if not session.exists:
                    raise Refused(INVALID, f"No conversation found with session ID: {session.id}")
                self._open(session, params)
                if method == "session/load":
                    self._replay(session)
                return {}
            case "session/prompt":
                return self._prompt(params)
            case _:
                raise Refused(NO_SUCH_METHOD, f"{method} is not known here.")

    def _open(self, session: Session, params: dict[str, Any]) -> None:
        if os.path.isdir(str(params.get("cwd"))):
            os.chdir(params["cwd"])
        self._sessions[session.id] = session

    def _replay(self, session: Session) -> None:
        for turn in session.turns():
            kind = "user_message_chunk" if turn["role"] == "user" else "agent_message_chunk"
            self.update(session.id, kind, content={"type": "text", "text": turn["text"]})

    def _prompt(self, params: dict[str, Any]) -> dict[str, Any]:
        session = self._sessions.get(str(params.get("sessionId")))
        if session is None:
            raise Refused(INVALID, "There is no such session; open one first.")
        words = "\n".join(str(part.get("text", "")) for part in params.get("prompt") or [])
        session.add("user", words)
        self._cancelled.clear()
        face = AcpFace(self, session)
        try:
            AcpAgent(face, self).obey(words)
        except Cancelled:
            return {"stopReason": "cancelled", "usage": face.usage()}
        except Quota as quota:
            reset = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(quota.args[0]))
            raise Refused(INTERNAL, f"Usage limit reached; try again at {reset}.") from None
        return {"stopReason": "end_turn", "usage": face.usage()}


class AcpFace(Face):
    def __init__(self, server: Server, session: Session) -> None:
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


class AcpAgent(Agent):
    """It listens for a cancellation while it waits."""

    def __init__(self, face: Face, server: Server) -> None:
        super().__init__(face, MODEL)
        self.server = server

    def do_sleep(self, rest: str) -> None:
        end = time.monotonic() + float(rest)
        while (left := end - time.monotonic()) > 0:
            self.server.check()
            time.sleep(min(left, 0.05))

    def do_hang(self, rest: str) -> None:
        self.do_sleep("1e9")


def serve() -> int:
    return Server().serve()
