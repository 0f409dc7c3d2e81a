"""A plain starlette application with the same requests and SQL.

No tokens, no input checks, no limits, no feed. A lock serialises writers, which is kinder to SQLite
than its own busy wait.
"""

import threading
from pathlib import Path
from typing import Any

import apsw
import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from bench.opponents import now_ms
from bench.opponents.raw_sqlite import INSERT_EVENT, PUT, connect

COLUMNS = (
    *("id", "mailbox", "sender", "project_id", "key", "body", "priority", "state", "due_at"),
    *("queue_at", "expires_at", "owner", "fence", "attempts", "last_error", "created_at"),
    "ended_at",
)
LETTER = """'let_' || seq, mailbox, sender, project_id, key, body, -rank, state, due_at, queue_at,
    expires_at, owner, fence, attempts, last_error, created_at, ended_at"""
LIST = f"""
    SELECT {LETTER} FROM letters
    WHERE state = 'waiting' AND mailbox = :mailbox AND (rank, queue_at, seq) > (:rank, 0, 0)
    ORDER BY rank, queue_at, seq LIMIT :limit
"""
PUT_WHOLE = PUT.replace("RETURNING seq", f"RETURNING {LETTER}")


class ThreadState(threading.local):
    connection: apsw.Connection | None = None


def bare_app(path: Path) -> Starlette:
    state, write_lock = ThreadState(), threading.Lock()

    def run(sql: str, values: dict[str, Any]) -> list[Any]:
        if state.connection is None:
            state.connection = connect(path)
        return state.connection.execute(sql, values).fetchall()

    def letters(request: Request) -> Response:
        query = request.query_params
        limit = int(query.get("limit", "50"))
        result = run(LIST, {"mailbox": query["mailbox"], "rank": -(1 << 62), "limit": limit + 1})
        return JSONResponse({"items": [_letter(row) for row in result[:limit]], "next": None})

    def put_letter(fields: dict[str, Any]) -> dict[str, Any]:
        now, body = now_ms(), msgspec.json.encode(fields["body"]).decode()
        with write_lock:
            run("BEGIN IMMEDIATE", {})
            (row,) = run(PUT_WHOLE, {"mailbox": fields["mailbox"], "body": body, "now": now})
            event = {"now": now, "actor": "user:bench", "verb": "put", "subject": row[0]}
            run(INSERT_EVENT, event)
            run("COMMIT", {})
        return _letter(row)

    async def put(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(put_letter, await request.json()))

    return Starlette(
        routes=[Route("/api/mail", letters), Route("/api/mail/put", put, methods=["POST"])]
    )


def _letter(row: Any) -> dict[str, Any]:
    letter = dict(zip(COLUMNS, row, strict=True))
    letter["body"] = msgspec.json.decode(letter["body"])
    return letter
