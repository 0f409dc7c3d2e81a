"""The program inside a sandbox: it reads `inbound.db`, runs the agent and writes `outbound.db`.

    python -m corral.adapters.sandbox_bridge.agent_client run ORDER
        answer the pending messages, then exit
    python -m corral.adapters.sandbox_bridge.agent_client repair OUTBOUND
        roll back the journal of a killed writer
    corral message send TEXT [--to NAME] [--edit N | --react N | --file PATH…]
    corral ask TEXT [--option ANSWER]… [--timeout SECONDS] [--no-wait]
    corral request ask ACTION [NAME=VALUE…]
    corral session state [NAME [VALUE]]

The agent calls the last four. They are the commands of the real `corral` that the two files can
serve. An answer and the acknowledgement of its messages are one transaction, so a killed agent has
done both or neither. Only the standard library is imported, and the output parser of an agent CLI.
"""

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from typing import Any

from corral.adapters.sandbox_bridge.files import SessionFiles, acknowledge, new_id, timestamp
from corral.adapters.sandbox_bridge.schema import BUSY_MS

PROMPT_PLACEHOLDER = "\x02what was said\x03"
"""Marks where an order's arguments, environment and stdin take the prompt."""
MAX_ANSWER = 64_000
MAX_VARIABLE = 100_000
POLL_SECONDS = 0.2
EX_TEMPFAIL = 75
"""The exit status of sysexits.h for a temporary failure."""


# -- turns ----------------------------------------------------------------------------------------


def run(order: dict[str, Any]) -> int:
    """Run turns until no message is pending; return the exit status of a failed turn, or 0."""
    files = SessionFiles(order["top"])
    files.begin()
    while messages := _take_messages(files):
        code = _run_turn(files, order, messages)
        if code:
            return code
    return 0


def _run_turn(files: SessionFiles, order: dict[str, Any], messages: list[dict[str, Any]]) -> int:
    ids = [row["id"] for row in messages]
    with files.writing() as connection:
        acknowledge(connection, ids, "processing")
    prompt = "\n\n".join(text for row in messages if (text := row["content"]["text"]))
    code, answer = _run_agent(order, prompt)
    with files.writing() as connection:
        if answer and not code:
            _put_answer(files, connection, messages, answer)
        acknowledge(connection, ids, "failed" if code else "completed")
    return code


def _take_messages(files: SessionFiles) -> list[dict[str, Any]]:
    """Return the pending messages for the agent, after carrying out orders of the host."""
    rows = files.pending()
    orders = [row["id"] for row in rows if row["content"].get("action") == "clear"]
    if orders:
        with files.writing() as connection:
            connection.execute("DELETE FROM session_state")
            acknowledge(connection, orders, "completed")
    return [row for row in rows if "text" in row["content"]]


def _put_answer(
    files: SessionFiles, connection: sqlite3.Connection, messages: list[dict[str, Any]], answer: str
) -> None:
    # The origin of the newest chat message. The host applies the same rule and checks the address.
    origin = next((row for row in reversed(messages) if row["platform_id"]), None)
    address = (None, None, None)
    if origin is not None:
        address = (origin["channel_type"], origin["platform_id"], origin["thread_id"])
    files.put(
        connection,
        "chat",
        {"text": answer[-MAX_ANSWER:], "final": True},
        address=address,
        in_reply_to=messages[-1]["id"],
    )


def _run_agent(order: dict[str, Any], prompt: str) -> tuple[int, str | None]:
    """Run the agent once; return its exit status and its final answer."""
    args = [_fill(argument, prompt) for argument in order["args"]]
    env = os.environ | {name: _fill(value, prompt) for name, value in order["env"].items()}
    env = {name: value for name, value in env.items() if len(value.encode()) <= MAX_VARIABLE}
    try:
        process = subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
    except OSError as error:
        sys.stderr.write(f"{args[0]}: {error.strerror}\n")
        return (127 if isinstance(error, FileNotFoundError) else 126), None
    with process:
        assert process.stdout is not None
        _write_stdin(process, _fill(order["stdin"] or "", prompt))
        output = AgentOutput(order["provider"])
        for line in process.stdout:
            sys.stdout.buffer.write(line)  # the host records the output of the run
            sys.stdout.buffer.flush()
            output.add_line(line)
    code = process.returncode
    return (code if code >= 0 else 128 - code) or output.failed, output.answer()


def _write_stdin(process: "subprocess.Popen[bytes]", text: str) -> None:
    """Write to stdin on a thread, to avoid a deadlock with a process that fills stdout."""
    import threading

    # Only the thread has the pipe from here on. Otherwise `Popen.__exit__` would also close it, get
    # BrokenPipeError from an agent that exits without reading, and fail a successful turn.
    pipe, process.stdin = process.stdin, None
    assert pipe is not None

    def write() -> None:
        try:
            with pipe:
                pipe.write(text.encode(errors="replace"))
        except OSError:
            pass  # the agent may exit without reading its input

    threading.Thread(target=write, daemon=True).start()


def _fill(text: str, prompt: str) -> str:
    return text.replace(PROMPT_PLACEHOLDER, prompt).replace("\0", "")


class AgentOutput:
    """Collects the answer of an agent: all output of a plain command, else the last message."""

    def __init__(self, provider: str) -> None:
        self._parser: Any = None
        self._text = b""
        self._last: str | None = None
        self.failed = 0
        if provider != "plain":
            from corral.adapters.providers import registry

            self._parser = registry.get_provider(provider).create_parser()

    def add_line(self, line: bytes) -> None:
        if self._parser is None:
            self._text = (self._text + line)[-4 * MAX_ANSWER :]
            return
        from corral.adapters.providers.facts import ResultFact, TurnFact

        for fact in self._parser.feed(line):
            if isinstance(fact, TurnFact) and fact.role == "assistant" and not fact.tool_name:
                self._last = fact.content.strip() or self._last
            elif isinstance(fact, ResultFact) and not fact.ok:
                self.failed = 1

    def answer(self) -> str | None:
        text = self._text.decode(errors="replace") if self._parser is None else self._last
        return (text or "").replace("\0", "").strip() or None


def recover_journal(path: str) -> int:
    """Open a file whose writer was killed: SQLite rolls back the hot journal."""
    with closing(sqlite3.connect(path, timeout=BUSY_MS / 1_000)) as connection:
        connection.isolation_level = None
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("COMMIT")
    return 0


# -- commands of the agent ------------------------------------------------------------------------


def run_tool(arguments: list[str]) -> int:
    """Run a command of the agent: `message send`, `ask`, `request ask` or `session state`."""
    files = SessionFiles(os.environ["CORRAL_SESSION_FOLDER"])
    top = argparse.ArgumentParser(
        prog="corral", description="The commands of Corral that are available in this sandbox."
    )
    nouns = top.add_subparsers(required=True, metavar="COMMAND")
    verbs = nouns.add_parser("message").add_subparsers(required=True)
    send = verbs.add_parser("send", help="Send a message to a chat.")
    send.add_argument("text")
    send.add_argument("--to", metavar="NAME")
    about = send.add_mutually_exclusive_group()
    about.add_argument("--edit", type=int, metavar="NUMBER")
    about.add_argument("--react", type=int, metavar="NUMBER")
    about.add_argument("--file", dest="files", action="append", default=[], metavar="PATH")
    send.set_defaults(handler=_send)
    ask = nouns.add_parser("ask", help="Ask a person and wait for the answer.")
    ask.add_argument("text")
    ask.add_argument("--option", dest="options", action="append", default=[])
    ask.add_argument("--timeout", type=float, default=300.0)
    ask.add_argument("--no-wait", action="store_true")
    ask.set_defaults(handler=_ask_question)
    verbs = nouns.add_parser("request").add_subparsers(required=True)
    want = verbs.add_parser(
        "ask", help="Request an action of the host; the result arrives as a message."
    )
    want.add_argument("action")
    want.add_argument("arguments", nargs="*", metavar="NAME=VALUE")
    want.set_defaults(handler=_request)
    verbs = nouns.add_parser("session").add_subparsers(required=True)
    state = verbs.add_parser("state", help="Read or write state that persists from turn to turn.")
    state.add_argument("name", nargs="?")
    state.add_argument("value", nargs="?")
    state.set_defaults(handler=_handle_state)
    args = top.parse_args(arguments)
    status: int = args.handler(files, args)
    return status


def _send(files: SessionFiles, args: argparse.Namespace) -> int:
    address: tuple[str | None, str | None, str | None] = (None, None, None)
    if args.to is not None:
        with files.reading() as connection:
            rows = connection.execute(
                "SELECT type, channel_type, platform_id, agent_group_id FROM destinations "
                "WHERE name = ?",
                (args.to,),
            ).fetchone()
            names = [name for (name,) in connection.execute("SELECT name FROM destinations")]
        if rows is None:
            sys.stderr.write(
                f"No destination {args.to!r}. Destinations: {', '.join(names) or 'none'}.\n"
            )
            return 4
        kind, channel, place, agent = rows
        address = (channel, place, None) if kind == "channel" else ("agent", agent, None)
    content: dict[str, Any] = {"text": args.text}
    id = new_id()
    if args.files:
        try:
            content["files"] = files.copy_to_outbox(id, args.files)
        except OSError as error:
            sys.stderr.write(f"{error.filename}: {error.strerror}\n")
            return 2
    with files.writing() as connection:
        for operation in ("edit", "react"):
            if (number := getattr(args, operation)) is not None:
                content |= {"operation": operation, "message": _find_id(files, connection, number)}
        _, number = files.put(connection, "chat", content, address=address, id=id)
    sys.stdout.write(f"{number}\n")
    return 0


def _request(files: SessionFiles, args: argparse.Namespace) -> int:
    pairs = [argument.partition("=") for argument in args.arguments]
    if wrong := [name for name, equals, _ in pairs if not equals]:
        sys.stderr.write(
            f"Invalid argument {wrong[0]!r}: expected NAME=VALUE, such as name=helper.\n"
        )
        return 2
    arguments = {name: value for name, _, value in pairs}
    with files.writing() as connection:
        _, number = files.put(connection, "system", {"action": args.action, "arguments": arguments})
    sys.stdout.write(f"{number}\n")
    return 0


def _find_id(files: SessionFiles, connection: sqlite3.Connection, number: int) -> str | None:
    """Return the id of a message by its number: odd for own messages, even for the host's."""
    if number % 2:
        rows = connection.execute("SELECT id FROM messages_out WHERE seq = ?", (number,))
        return next((str(id) for (id,) in rows), None)
    with files.reading() as other:
        rows = other.execute("SELECT id FROM messages_in WHERE seq = ?", (number,))
        return next((str(id) for (id,) in rows), None)


def _ask_question(files: SessionFiles, args: argparse.Namespace) -> int:
    content = {"type": "ask_question", "question": args.text, "options": args.options}
    with files.writing() as connection:
        id, number = files.put(connection, "chat", content)
    if args.no_wait:
        sys.stdout.write(f"{number}\n")
        return 0
    deadline = time.monotonic() + args.timeout
    while time.monotonic() < deadline:
        for row in files.pending():
            if row["content"].get("questionId") == id:
                with files.writing() as connection:
                    acknowledge(connection, [row["id"]], "completed")
                answer = row["content"].get("answer")
                sys.stdout.write(f"{answer}\n" if answer is not None else "")
                return 0 if answer is not None else 1
        time.sleep(POLL_SECONDS)
    sys.stderr.write("No answer yet. It will arrive in a later turn.\n")
    return 1


def _handle_state(files: SessionFiles, args: argparse.Namespace) -> int:
    with files.writing() as connection:
        if args.value is not None:
            connection.execute(
                "INSERT INTO session_state VALUES (?, ?, ?) ON CONFLICT (key) "
                "DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at",
                (args.name, args.value, timestamp()),
            )
            return 0
        query = "SELECT key, value FROM session_state WHERE ?1 IS NULL OR key = ?1 ORDER BY key"
        rows = connection.execute(query, (args.name,)).fetchall()
    for key, value in rows:
        sys.stdout.write(f"{value}\n" if args.name else f"{key}\t{value}\n")
    return 0 if rows or args.name is None else 3


def main(arguments: list[str]) -> int:
    try:
        if arguments[:1] == ["run"]:
            with open(arguments[1], encoding="utf-8") as file:
                return run(json.load(file))
        if arguments[:1] == ["repair"]:
            return recover_journal(arguments[1])
        return run_tool(arguments)
    except sqlite3.Error as error:
        sys.stderr.write(f"corral: cannot use the files of the session: {error}\n")
        return EX_TEMPFAIL


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
