"""What runs inside of a sandbox: it reads `inbound.db`, asks the agent, and writes `outbound.db`.

    python -m corral.adapters.sandbox_bridge.agent_client run ORDER
        answer the pending messages, then exit
    python -m corral.adapters.sandbox_bridge.agent_client mend OUTBOUND
        replay the journal that a killed writer left
    corral message send TEXT [--to NAME] [--edit N | --react N | --file PATH…]
    corral ask TEXT [--option ANSWER]… [--timeout SECONDS] [--no-wait]
    corral request ask ACTION [NAME=VALUE…]
    corral session state [NAME [VALUE]]

The last four are for the agent: the same words as outside, as far as the two files reach. An
answer and the acknowledgement of what it answers are one transaction, so whoever is killed has done
both or neither. Only the standard library is needed, and for an agent CLI the parser of its lines.
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

from corral.adapters.sandbox_bridge.files import Files, acknowledge, new_id, now
from corral.adapters.sandbox_bridge.schema import BUSY_MS

MARK = "\x02what was said\x03"
"""Stands in an order where the words of a turn go."""
MOST_ANSWER = 64_000
MOST_VARIABLE = 100_000
LOOK = 0.2
UNREADABLE = 75  # try again later, as mail says it


# -- turns ----------------------------------------------------------------------------------------


def run(order: dict[str, Any]) -> int:
    """Deal with everything that waits; how the last agent ended, 0 when all ended well."""
    files = Files(order["top"])
    files.begin()
    while told := _to_tell(files):
        code = _turn(files, order, told)
        if code:
            return code
    return 0


def _turn(files: Files, order: dict[str, Any], told: list[dict[str, Any]]) -> int:
    ids = [row["id"] for row in told]
    with files.writing() as connection:
        acknowledge(connection, ids, "processing")
    prompt = "\n\n".join(text for row in told if (text := row["content"]["text"]))
    code, answer = _ask(order, prompt)
    with files.writing() as connection:
        if answer and not code:
            _answer(files, connection, told, answer)
        acknowledge(connection, ids, "failed" if code else "completed")
    return code


def _to_tell(files: Files) -> list[dict[str, Any]]:
    """What the agent is to be told next; what the host itself wants is done."""
    rows = files.pending()
    orders = [row["id"] for row in rows if row["content"].get("action") == "clear"]
    if orders:
        with files.writing() as connection:
            connection.execute("DELETE FROM session_state")
            acknowledge(connection, orders, "completed")
    return [row for row in rows if "text" in row["content"]]


def _answer(
    files: Files, connection: sqlite3.Connection, told: list[dict[str, Any]], answer: str
) -> None:
    # Where the newest of them came from: the host says the same, and checks it.
    came = next((row for row in reversed(told) if row["platform_id"]), None)
    address = (None, None, None)
    if came is not None:
        address = (came["channel_type"], came["platform_id"], came["thread_id"])
    files.put(
        connection,
        "chat",
        {"text": answer[-MOST_ANSWER:], "final": True},
        address=address,
        in_reply_to=told[-1]["id"],
    )


def _ask(order: dict[str, Any], prompt: str) -> tuple[int, str | None]:
    """One turn of the agent: its exit code, and what it said at the end."""
    args = [_filled(word, prompt) for word in order["args"]]
    env = os.environ | {name: _filled(value, prompt) for name, value in order["env"].items()}
    env = {name: value for name, value in env.items() if len(value.encode()) <= MOST_VARIABLE}
    try:
        process = subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
    except OSError as error:
        sys.stderr.write(f"{args[0]}: {error.strerror}\n")
        return (127 if isinstance(error, FileNotFoundError) else 126), None
    with process:
        assert process.stdout is not None
        _feed(process, _filled(order["stdin"] or "", prompt))
        said = Heard(order["provider"])
        for line in process.stdout:
            sys.stdout.buffer.write(line)  # whoever watches from outside sees it as ever
            sys.stdout.buffer.flush()
            said.take(line)
    code = process.returncode
    return (code if code >= 0 else 128 - code) or said.failed, said.answer()


def _feed(process: "subprocess.Popen[bytes]", text: str) -> None:
    """Tell it while its output is read, so that neither waits for the other."""
    import threading

    # The thread alone has the pipe from here: an agent that ends without reading would else break
    # it for whoever closes it at the same moment, and a turn that went well would count as failed.
    pipe, process.stdin = process.stdin, None
    assert pipe is not None

    def write() -> None:
        try:
            with pipe:
                pipe.write(text.encode(errors="replace"))
        except OSError:
            pass  # it need not read what it is told

    threading.Thread(target=write, daemon=True).start()


def _filled(text: str, prompt: str) -> str:
    return text.replace(MARK, prompt).replace("\0", "")


class Heard:
    """What an agent says: all of a plain command's output, else its last words."""

    def __init__(self, provider: str) -> None:
        self._parser: Any = None
        self._text = b""
        self._last: str | None = None
        self.failed = 0
        if provider != "plain":
            from corral.adapters.providers import registry

            self._parser = registry.find(provider).parser()

    def take(self, line: bytes) -> None:
        if self._parser is None:
            self._text = (self._text + line)[-4 * MOST_ANSWER :]
            return
        from corral.adapters.providers.facts import Finished, Said

        for fact in self._parser.feed(line):
            if isinstance(fact, Said) and fact.role == "assistant" and not fact.tool_name:
                self._last = fact.content.strip() or self._last
            elif isinstance(fact, Finished) and not fact.ok:
                self.failed = 1

    def answer(self) -> str | None:
        said = self._text.decode(errors="replace") if self._parser is None else self._last
        return (said or "").replace("\0", "").strip() or None


def mend(path: str) -> int:
    """Open a file whose writer died: SQLite takes back what was half done."""
    with closing(sqlite3.connect(path, timeout=BUSY_MS / 1_000)) as connection:
        connection.isolation_level = None
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("COMMIT")
    return 0


# -- what the agent can call ----------------------------------------------------------------------


def tool(words: list[str]) -> int:
    """A command of the agent's: `message send`, `ask`, `request ask`, `session state`."""
    files = Files(os.environ["CORRAL_BOXED"])
    top = argparse.ArgumentParser(
        prog="corral", description="You are in a sandbox: this is what Corral does for you here."
    )
    nouns = top.add_subparsers(required=True, metavar="COMMAND")
    verbs = nouns.add_parser("message").add_subparsers(required=True)
    send = verbs.add_parser("send", help="Say something in a chat.")
    send.add_argument("text")
    send.add_argument("--to", metavar="NAME")
    about = send.add_mutually_exclusive_group()
    about.add_argument("--edit", type=int, metavar="NUMBER")
    about.add_argument("--react", type=int, metavar="NUMBER")
    about.add_argument("--file", dest="files", action="append", default=[], metavar="PATH")
    send.set_defaults(does=_send)
    ask = nouns.add_parser("ask", help="Ask a person, and wait for the answer.")
    ask.add_argument("text")
    ask.add_argument("--option", dest="options", action="append", default=[])
    ask.add_argument("--timeout", type=float, default=300.0)
    ask.add_argument("--no-wait", action="store_true")
    ask.set_defaults(does=_question)
    verbs = nouns.add_parser("request").add_subparsers(required=True)
    want = verbs.add_parser("ask", help="Ask the host for something; you are told how it ends.")
    want.add_argument("action")
    want.add_argument("arguments", nargs="*", metavar="NAME=VALUE")
    want.set_defaults(does=_request)
    verbs = nouns.add_parser("session").add_subparsers(required=True)
    state = verbs.add_parser("state", help="What you remember from turn to turn.")
    state.add_argument("name", nargs="?")
    state.add_argument("value", nargs="?")
    state.set_defaults(does=_state)
    given = top.parse_args(words)
    done: int = given.does(files, given)
    return done


def _send(files: Files, given: argparse.Namespace) -> int:
    address: tuple[str | None, str | None, str | None] = (None, None, None)
    if given.to is not None:
        with files.reading() as connection:
            found = connection.execute(
                "SELECT type, channel_type, platform_id, agent_group_id FROM destinations "
                "WHERE name = ?",
                (given.to,),
            ).fetchone()
            names = [name for (name,) in connection.execute("SELECT name FROM destinations")]
        if found is None:
            sys.stderr.write(f"There is no destination {given.to!r}; there is {names}.\n")
            return 4
        kind, channel, place, agent = found
        address = (channel, place, None) if kind == "channel" else ("agent", agent, None)
    content: dict[str, Any] = {"text": given.text}
    id = new_id()
    if given.files:
        try:
            content["files"] = files.lay_out(id, given.files)
        except OSError as error:
            sys.stderr.write(f"{error.filename}: {error.strerror}\n")
            return 2
    with files.writing() as connection:
        for operation in ("edit", "react"):
            if (number := getattr(given, operation)) is not None:
                content |= {"operation": operation, "message": _id_of(files, connection, number)}
        _, number = files.put(connection, "chat", content, address=address, id=id)
    sys.stdout.write(f"{number}\n")
    return 0


def _request(files: Files, given: argparse.Namespace) -> int:
    pairs = [each.partition("=") for each in given.arguments]
    if wrong := [name for name, equals, _ in pairs if not equals]:
        sys.stderr.write(f"{wrong[0]!r} is no NAME=VALUE; write it like name=helper.\n")
        return 2
    arguments = {name: value for name, _, value in pairs}
    with files.writing() as connection:
        _, number = files.put(
            connection, "system", {"action": given.action, "arguments": arguments}
        )
    sys.stdout.write(f"{number}\n")
    return 0


def _id_of(files: Files, connection: sqlite3.Connection, number: int) -> str | None:
    """Which message a number stands for: ours are odd, the host's even."""
    if number % 2:
        found = connection.execute("SELECT id FROM messages_out WHERE seq = ?", (number,))
        return next((str(id) for (id,) in found), None)
    with files.reading() as other:
        found = other.execute("SELECT id FROM messages_in WHERE seq = ?", (number,))
        return next((str(id) for (id,) in found), None)


def _question(files: Files, given: argparse.Namespace) -> int:
    content = {"type": "ask_question", "question": given.text, "options": given.options}
    with files.writing() as connection:
        id, number = files.put(connection, "chat", content)
    if given.no_wait:
        sys.stdout.write(f"{number}\n")
        return 0
    deadline = time.monotonic() + given.timeout
    while time.monotonic() < deadline:
        for row in files.pending():
            if row["content"].get("questionId") == id:
                with files.writing() as connection:
                    acknowledge(connection, [row["id"]], "completed")
                answer = row["content"].get("answer")
                sys.stdout.write(f"{answer}\n" if answer is not None else "")
                return 0 if answer is not None else 1
        time.sleep(LOOK)
    sys.stderr.write("There is no answer yet; it will be told in a later turn.\n")
    return 1


def _state(files: Files, given: argparse.Namespace) -> int:
    with files.writing() as connection:
        if given.value is not None:
            connection.execute(
                "INSERT INTO session_state VALUES (?, ?, ?) ON CONFLICT (key) "
                "DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at",
                (given.name, given.value, now()),
            )
            return 0
        wanted = "SELECT key, value FROM session_state WHERE ?1 IS NULL OR key = ?1 ORDER BY key"
        found = connection.execute(wanted, (given.name,)).fetchall()
    for key, value in found:
        sys.stdout.write(f"{value}\n" if given.name else f"{key}\t{value}\n")
    return 0 if found or given.name is None else 3


def main(words: list[str]) -> int:
    try:
        if words[:1] == ["run"]:
            with open(words[1], encoding="utf-8") as file:
                return run(json.load(file))
        if words[:1] == ["mend"]:
            return mend(words[1])
        return tool(words)
    except sqlite3.Error as error:
        sys.stderr.write(f"corral: the session's files cannot be used: {error}\n")
        return UNREADABLE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
