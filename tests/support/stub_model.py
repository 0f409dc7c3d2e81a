"""A local stub of model servers, to test real agent CLIs offline.

It implements, on one loopback port, the wire protocols that coding agents use:

* Anthropic Messages      POST /v1/messages, /v1/messages/count_tokens
* OpenAI Responses        POST /v1/responses (and /responses)
* OpenAI Chat Completions POST /v1/chat/completions (and /chat/completions)
* Gemini                  POST /v1beta/models/M:streamGenerateContent (and :generateContent,
                          :countTokens)
* model lists             GET  /v1/models, /v1beta/models
* for tests               GET  /_log (received requests), POST /_reset

The prompt alone decides the response.  A user message may contain one directive, anywhere in
its text:

    STUB:{"steps": [{"tool": "Write", "args": {"file_path": "a.txt", "content": "hi"}},
                    {"text": "done"}]}

Each model turn after that message executes the next step.  The stub counts the finished steps in
the conversation, so a resumed session or a second client continues at the right step.  Without a
directive, or after its last step, the response is "stub: " and the end of the last user message.

A step is an object with any of:
  text      text of the response
  tool      name of the tool to call; "~regex" calls the first offered tool that matches
  args      the tool's arguments (an object, or a string for a free-form tool)
  force     true: call the tool by that name even if the request does not offer it
  calls     a list of {"tool", "args"}: several calls in one turn
  usage     {"input": n, "output": n, "cache_read": n, "cache_write": n}
  sleep     seconds to wait before the first byte
  pace      seconds to wait between the pieces of a stream
  error     HTTP status of an error response, the first `times` times (default 1)
  cut       true: close the connection in the middle of the stream, the first `times` times
  hang      seconds to pause in the middle of the stream
  gate      a name: pause in the middle, or repeat the error, until the test opens that gate
  headers   additional headers of an error response; `body` replaces its JSON body

Uses only the standard library.  It binds 127.0.0.1 and opens no connections.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.stub_anthropic_gemini import (
    read_anthropic,
    read_gemini,
    stream_anthropic,
    stream_gemini,
    whole_anthropic,
    whole_gemini,
)
from tests.support.stub_conversation import Conversation, Turn, new_id, plan
from tests.support.stub_openai import (
    read_chat,
    read_responses,
    stream_chat,
    stream_responses,
    whole_chat,
    whole_responses,
)


class Stub(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int = 0, log: str | None = None, full: bool = False) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.lock = threading.Lock()
        self.seen: list[dict[str, Any]] = []
        self.failures: dict[str, int] = {}
        self.gates: dict[str, threading.Event] = {}
        self.log, self.full = log, full

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def start(self) -> Stub:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def note(self, entry: dict[str, Any]) -> None:
        with self.lock:
            self.seen.append(entry)
            if self.log:
                with open(self.log, "a", encoding="utf-8") as out:
                    out.write(json.dumps(entry) + "\n")

    def gate(self, name: str) -> threading.Event:
        """Block a step in the middle, or its error, until the gate is set."""
        with self.lock:
            return self.gates.setdefault(name, threading.Event())

    def fails(self, turn: Turn) -> bool:
        """Return whether the fault of this step is still due (it occurs `times` times)."""
        if "gate" in turn.step:
            return not self.gate(turn.step["gate"]).is_set()
        with self.lock:
            count = self.failures.get(turn.key, 0)
            if count >= int(turn.step.get("times", 1)):
                return False
            self.failures[turn.key] = count + 1
            return True


class Handler(BaseHTTPRequestHandler):
    server: Stub
    protocol_version = "HTTP/1.1"
    server_version = "stub-model/1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def send_json(self, status: int, value: Any, **headers: str) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.send_header("request-id", new_id("req"))
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def do_HEAD(self) -> None:
        self.send_json(200, {})

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/_log":
            with self.server.lock:
                self.send_json(200, self.server.seen)
            return
        self.server.note({"method": "GET", "path": path})
        if path.startswith("/v1beta/models"):
            self.send_json(
                200,
                {
                    "models": [
                        {
                            "name": "models/stub",
                            "displayName": "stub",
                            "inputTokenLimit": 1_000_000,
                            "outputTokenLimit": 65_536,
                            "supportedGenerationMethods": ["generateContent", "countTokens"],
                        }
                    ]
                },
            )
        elif path.endswith("/models"):
            self.send_json(
                200,
                {
                    "object": "list",
                    "has_more": False,
                    "data": [
                        {
                            "id": "stub",
                            "type": "model",
                            "object": "model",
                            "display_name": "stub",
                            "created": 0,
                            "owned_by": "stub",
                            "created_at": "2026-01-01T00:00:00Z",
                        }
                    ],
                },
            )
        elif path in ("/", "/health"):
            self.send_json(200, {"ok": True})
        else:
            self.send_json(404, {"error": {"type": "not_found", "message": path}})

    def do_POST(self) -> None:
        if "chunked" in self.headers.get("transfer-encoding", ""):
            raw = self.read_chunked()
        else:
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        path = self.path.partition("?")[0]
        if path == "/_reset":
            with self.server.lock:
                self.server.seen.clear()
                self.server.failures.clear()
            self.send_json(200, {})
            return
        try:
            body = json.loads(raw) if raw else {}
        except ValueError:
            body = None
        if isinstance(body, dict):
            self.route(path, body, len(raw))
            return
        self.server.note({"method": "POST", "path": path, "bytes": len(raw)})
        error = {"type": "invalid_request_error", "message": "the body is not a JSON object"}
        self.send_json(400, {"error": error})

    def route(self, path: str, body: dict[str, Any], size: int) -> None:
        if path.endswith("/messages/count_tokens"):
            self.send_json(200, {"input_tokens": size // 4})
        elif path.endswith(":countTokens"):
            self.send_json(200, {"totalTokens": size // 4})
        elif path.endswith("/messages"):
            self.answer(path, body, read_anthropic(body), whole_anthropic, stream_anthropic)
        elif path.endswith("/responses"):
            self.answer(path, body, read_responses(body), whole_responses, stream_responses)
        elif path.endswith("/chat/completions"):
            self.answer(path, body, read_chat(body), whole_chat, stream_chat)
        elif result := re.search(r"/models/([^/:]+):(stream)?[gG]enerateContent$", path):
            conversation = read_gemini(body, result[1], bool(result[2]))
            self.answer(path, body, conversation, whole_gemini, stream_gemini)
        else:
            self.server.note({"method": "POST", "path": path, "bytes": size})
            self.send_json(404, {"error": {"type": "not_found", "message": path}})

    def read_chunked(self) -> bytes:
        data = b""
        while size := int(self.rfile.readline().split(b";")[0] or b"0", 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def answer(
        self, path: str, body: dict[str, Any], conversation: Conversation, render: Any, stream: Any
    ) -> None:
        turn = plan(conversation)
        step = turn.step
        entry = {
            "method": "POST",
            "path": path,
            "model": conversation.model,
            "stream": conversation.stream,
            "entries": len(conversation.entries),
            "tools": [t.name for t in conversation.tools],
            "last": conversation.entries[-1] if conversation.entries else None,
            "text": turn.text,
            "calls": [[c.tool.name, c.args] for c in turn.calls],
            "usage": turn.usage,
        }
        if self.server.full:
            entry["body"] = body
        self.server.note(entry)
        time.sleep(float(step.get("sleep", 0)))
        if "error" in step and self.server.fails(turn):
            self.send_error_of(step)
            return
        if not conversation.stream:
            self.send_json(200, render(conversation, turn))
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("cache-control", "no-cache")
        self.send_header("connection", "close")
        self.send_header("request-id", new_id("req"))
        self.end_headers()
        self.close_connection = True
        events = list(stream(conversation, turn))
        middle = len(events) // 2
        cut = bool(step.get("cut")) and self.server.fails(turn)
        try:
            for at, (name, value) in enumerate(events):
                if at == middle:
                    time.sleep(float(step.get("hang", 0)))
                    if "gate" in step:
                        self.server.gate(step["gate"]).wait(120)
                    if cut:
                        self.connection.close()
                        return
                data = value if isinstance(value, str) else json.dumps(value)
                head = f"event: {name}\n" if name else ""
                self.wfile.write(f"{head}data: {data}\n\n".encode())
                self.wfile.flush()
                time.sleep(float(step.get("pace", 0)))
        except (BrokenPipeError, ConnectionResetError):
            self.server.note({"gone": path})

    def send_error_of(self, step: dict[str, Any]) -> None:
        kind = {
            400: "invalid_request_error",
            401: "authentication_error",
            429: "rate_limit_error",
            529: "overloaded_error",
        }.get(step["error"], "api_error")
        usual = {"type": "error", "error": {"type": kind, "message": "stub error", "code": kind}}
        headers = {"retry-after": "1"} | step.get("headers", {})
        self.send_json(step["error"], step.get("body", usual), **headers)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one (default)")
    parser.add_argument("--log", help="append each request, as a JSON line, to this file")
    parser.add_argument("--full", action="store_true", help="log whole request bodies")
    parser.add_argument(
        "--for",
        dest="seconds",
        type=float,
        default=3600,
        help="stop by itself after this many seconds (default 3600)",
    )
    args = parser.parse_args()
    stub = Stub(args.port, args.log, args.full).start()
    print(stub.url, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        time.sleep(args.seconds)
    stub.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
