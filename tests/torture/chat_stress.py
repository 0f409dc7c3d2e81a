"""Chats under stress: a faulty platform, real hosts and real runs, all killed at random.

    python -m tests.torture --chat --places 20 --agents 5 --messages 500 --kills 200 --seed 1

People write in all places, to one agent at a time. The host that receives and sends is killed and
restarted, and so are supervisors, guards and agents of the runs. The final check compares only the
platform and the store: every message was answered once, in the order of its place, or was
dead-lettered and reported; none is lost or shown twice.
"""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import corral
from corral.adapters.processes import process
from corral.api import Corral
from corral.domain.chat.model import Message
from corral.domain.mail.model import Letter
from tests.support.invariants import check_store
from tests.support.postgres_server import free_port
from tests.torture.chat_platform import KINDS, ask, register_adapters
from tests.torture.ledger import Batch, append_batch, format_counts
from tests.torture.workspace import folder_for, store_for

NAMES = ("ada", "ben", "cyd", "dan", "eve", "fay", "gus", "hal")
ROLES = ("supervisor", "guard", "agent")
MAX_IDLE = 180.0
"""Seconds without progress after which unanswered messages count as lost."""
OPERATOR = "user:operator"
_NUMBER = re.compile(r"#(\d+)")

# Waits for more messages and answers them. Every other agent answers once and exits.
ANSWER_MANY = """\
#!{python}
import os, re, sys
import corral

def answer(text):
    return os.environ["CORRAL_AGENT"] + ": " + " ".join(re.findall("#[0-9]+", text))

reply = answer(sys.stdin.read().rpartition("\\n\\nNow: ")[2])  # after the earlier turns
with corral.open(os.environ["CORRAL_STORE"], actor="agent:" + os.environ["CORRAL_AGENT"]) as store:
    run, after = os.environ["CORRAL_RUN"], None
    while (batch := store.messages.next(run, after=after, answer=reply, wait_ms=300)) is not None:
        after, reply = batch.letters[-1], answer(batch.text)
"""
ANSWER_ONCE = """\
#!{python} -SE
import os, re, sys
prompt = sys.stdin.read().rpartition("\\n\\nNow: ")[2]
print(os.environ["CORRAL_AGENT"] + ": " + " ".join(re.findall("#[0-9]+", prompt)))
"""


class ChatStress:
    def __init__(self, folder: Path, wanted: argparse.Namespace, url: str) -> None:
        self.folder = folder
        self.wanted = wanted
        self.url = url
        self.random = random.Random(wanted.seed)
        self.agents = NAMES[: wanted.agents]
        self.places = [
            (kind, f"{kind}-{number}")
            for number in range(wanted.places)
            for kind in [list(KINDS)[number % 2]]
        ]
        self.total = wanted.places * wanted.messages
        self.posted: dict[int, tuple[str, str, str]] = {}
        """Kind, place and agent of each posted message."""
        self.kills: Counter[str] = Counter()
        self.port = free_port()
        self.platform_url = f"http://127.0.0.1:{self.port}/"
        self.dead = 0
        self._shown: list[dict[str, Any]] = []
        self._platform: subprocess.Popen[bytes] | None = None
        self._host: subprocess.Popen[bytes] | None = None
        self._log = (folder / "hosts.log").open("wb")

    # -- participants -----------------------------------------------------------------------------

    def prepare(self, store: Corral) -> None:
        for name, value in (
            ("chat.max_concurrent", 10),
            ("mail.backoff_ms", [150, 300, 600, 1_200]),
            ("mail.max_attempts", 8),
        ):
            store.settings.set(name, value)
        store.alerts.add(["undelivered"], target_kind="mailbox", target=OPERATOR)
        for kind in KINDS:
            store.channels.add(kind, kind, config={"url": self.platform_url}, policy="public")
        for number, name in enumerate(self.agents):
            program = self.folder / name
            text = ANSWER_MANY if number % 2 == 0 else ANSWER_ONCE
            program.write_text(text.format(python=sys.executable))
            program.chmod(0o755)
            store.agents.create(name, command=str(program))
            for kind in KINDS:
                store.wirings.add(name, channel=kind, trigger="mention")

    def begin(self) -> None:
        module = [sys.executable, "-m", "tests.torture.chat_platform", str(self.port)]
        self._platform = subprocess.Popen([*module, str(self.wanted.seed)])
        deadline = time.monotonic() + 20
        while True:
            with suppress(OSError):
                self.fetch_shown()
                break
            assert time.monotonic() < deadline, "the platform did not start"
            time.sleep(0.05)
        self.start_host()

    def start_host(self) -> None:
        command = [sys.executable, "-m", "tests.torture.chat_stress", "--host", self.url]
        self._host = subprocess.Popen(command, stdout=self._log, stderr=self._log)

    def end(self) -> None:
        for child in (self._host, self._platform):
            if child is not None:
                child.kill()
                child.wait()
        mark = f"CORRAL_HOME={self.folder / 'home'}".encode()
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != os.getpid():
                with suppress(OSError):
                    if mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                        os.kill(int(name), signal.SIGKILL)

    def fetch_shown(self) -> dict[str, Any]:
        """Add the newly visible messages of the platform and its counters."""
        _, result = ask(self.platform_url, what="look", after=len(self._shown))
        self._shown += result.pop("shown")
        return result

    # -- faults ----------------------------------------------------------------------------------

    def post_messages(self, upto: int) -> None:
        events: dict[str, list[dict[str, Any]]] = defaultdict(list)
        while len(self.posted) < upto:
            number = len(self.posted) + 1
            kind, place = self.random.choice(self.places)
            agent = self.random.choice(self.agents)
            self.posted[number] = kind, place, agent
            event = {"event_id": f"e{number}", "place": place, "sender": "ann"}
            events[kind].append(event | {"text": f"@{agent} #{number}"})
        for kind, batch in events.items():
            ask(self.platform_url, what="say", kind=kind, events=batch)

    def inject_faults(self, store: Corral) -> None:
        """Kill processes while people write, so that there is always work in flight."""
        wanted, last_print = self.wanted.kills, time.monotonic()
        while (killed := sum(self.kills.values())) < wanted:
            self.post_messages(self.total * (killed + 1) // (wanted + 1))
            time.sleep(self.random.choice((0.05, 0.2, 0.5, 1.0, 2.0)))
            if self.random.random() < 0.5:
                self.kill_host()
            else:
                self.kill_runner(store)
            if time.monotonic() - last_print > 15:
                last_print = time.monotonic()
                self.fetch_shown()
                print(
                    f"  {killed} kills, {len(self.posted)} posted, "
                    f"{self.count_answered()} answered",
                    flush=True,
                )
        self.post_messages(self.total)

    def kill_host(self) -> None:
        assert self._host is not None
        self._host.kill()
        self._host.wait()
        self.kills["host"] += 1
        self.start_host()

    def kill_runner(self, store: Corral) -> None:
        from tests.torture.__main__ import Torture

        live = [run for run in store.runs.list(live=True, limit=100).items if run.pid]
        if not live:
            return
        run, role = self.random.choice(live), self.random.choice(ROLES)
        identity = Torture.find(run, role)
        if identity is not None and process.send_signal(identity, signal.SIGKILL):
            self.kills[role] += 1

    def count_answered(self) -> int:
        return len({n for item in self._shown for n in _numbers(item["text"])})

    def recover(self, store: Corral) -> float:
        """Wait until everything is answered or reported as dead, or nothing changes; return the
        seconds."""
        start = last_change = last_print = time.monotonic()
        known = -1
        while time.monotonic() < last_change + MAX_IDLE:
            self.fetch_shown()
            answered_count, waiting = self.count_answered(), len(_waiting(store))
            if not waiting and answered_count >= self.total:
                break
            if (now := time.monotonic()) > last_print + 15:
                last_print = now
                print(f"  {answered_count} answered, {waiting} letters in flight", flush=True)
            if answered_count - waiting != known:
                known, last_change = answered_count - waiting, time.monotonic()
            if self._host is not None and self._host.poll() is not None:
                self.start_host()
            time.sleep(0.5)
        return time.monotonic() - start

    # -- the checks -------------------------------------------------------------------------------

    def judge(self, store: Corral) -> list[str]:
        self.fetch_shown()
        check_store(store)
        messages = _messages(store)
        received = {
            _event_number(message): message for message in messages if message.direction == "in"
        }
        wrong = [f"#{n} was not stored" for n in self.posted if n not in received]
        answers, deaths = self._collect_answers()
        reported = _reported(store)
        for number, (kind, place, agent) in self.posted.items():
            answer_list, dead = answers[number], number in deaths or number in reported
            if len(answer_list) > 1:
                wrong.append(f"#{number} was answered {len(answer_list)} times: {answer_list}")
            elif answer_list and answer_list != [(kind, place, agent)]:
                wrong.append(
                    f"#{number}, posted to {(kind, place, agent)}, was answered by {answer_list}"
                )
            elif not answer_list and not dead:
                wrong.append(f"#{number} is lost: {_describe(store, received.get(number))}")
        wrong += self._out_of_order(messages, received)
        wrong += [f"{letter.mailbox} still has {letter.id}" for letter in _waiting(store)]
        self.dead = sum(not answers[n] for n in self.posted)
        return wrong

    def _collect_answers(self) -> tuple[dict[int, list[tuple[str, str, str]]], set[int]]:
        answers: dict[int, list[tuple[str, str, str]]] = defaultdict(list)
        deaths: set[int] = set()
        for item in self._shown:
            if item["text"].startswith("Your message"):
                deaths |= {int(n) for n in _NUMBER.findall(item["text"])}
            for number in _numbers(item["text"]):
                name = item["text"].partition(":")[0]
                answers[number].append((item["kind"], item["place"], name))
        return answers, deaths

    def _out_of_order(self, messages: list[Message], received: dict[int, Message]) -> list[str]:
        wrong = []
        answer_order: dict[tuple[str, str], list[int]] = defaultdict(list)
        for item in self._shown:
            name = item["text"].partition(":")[0]
            answer_order[item["place"], name] += [
                _number_of(received[n]) for n in _numbers(item["text"])
            ]
        for (place, name), seqs in answer_order.items():
            if any(first >= second for first, second in pairwise(seqs)):
                wrong.append(f"{name} answered out of order in {place}")
        sent_messages = {id: item for item in messages for id in item.platform_ids}
        shown_numbers: dict[str, list[int]] = defaultdict(list)
        for item in self._shown:
            if item["id"] in sent_messages:
                shown_numbers[item["place"]].append(_number_of(sent_messages[item["id"]]))
        for place, seqs in shown_numbers.items():
            if any(first >= second for first, second in pairwise(seqs)):
                wrong.append(f"messages to {place} are shown out of order")
        return wrong


def _numbers(text: str) -> list[int]:
    """Return the messages that a reply answers."""
    name, colon, rest = text.partition(": ")
    return [int(n) for n in _NUMBER.findall(rest)] if colon and name in NAMES else []


def _number_of(message: Message) -> int:
    return int(message.id.removeprefix("msg_"))


def _event_number(message: Message) -> int:
    return int(message.event_id.removeprefix("in:e"))


def _messages(store: Corral) -> list[Message]:
    result, after = [], None
    while True:
        page = store.messages.list(after=after, limit=1_000)
        result += page.items
        if (after := page.next) is None:
            return result


def _waiting(store: Corral) -> list[Letter]:
    """Return the messages that are still in flight."""
    result, after = [], None
    while True:
        page = store.mail.list(after=after, limit=1_000)
        result += [item for item in page.items if item.mailbox.startswith(("session:", "place:"))]
        if (after := page.next) is None:
            return [item for item in result if "undelivered" not in (item.body or {})]


def _reported(store: Corral) -> set[int]:
    """Return the messages whose failure was reported to the operator."""
    result: set[int] = set()
    letters, after = [], None
    while True:
        page = store.mail.list(mailbox=OPERATOR, after=after, limit=1_000)
        letters += page.items
        if (after := page.next) is None:
            break
    for letter in letters:
        body = letter.body
        subject = str(body.get("subject", ""))
        if subject.startswith("msg_"):
            result |= {*_numbers(store.messages.get(subject).text)}
        elif subject.startswith("let_"):
            chat = store.mail.get(subject).body
            result |= {int(n) for n in _NUMBER.findall(str(chat.get("text")))}
    return result


def _describe(store: Corral, message: Message | None) -> str:
    if message is None:
        return "not stored"
    letters = [
        (letter.state, letter.attempts, letter.last_error)
        for route in message.routes
        if route.letter_id is not None and (letter := store.mail.get(route.letter_id))
    ]
    return f"{message.id} is {message.state} ({message.reason}), letters {letters}"


# -- processes -------------------------------------------------------------------------------------


def host(url: str) -> None:
    """Run the host, which receives, runs turns and sends until it is killed."""
    from corral.daemon.loop_manager import LoopManager
    from corral.daemon.loops import create_loops

    register_adapters()
    with corral.open(url, actor="host") as store:
        names = {"dispatcher", "reaper", "chat"}
        LoopManager(store, loops=[loop for loop in create_loops() if loop.name in names]).begin()
        parent = os.getppid()
        while os.getppid() == parent:
            time.sleep(0.5)


def run(wanted: argparse.Namespace, folder: Path, url: str | None = None) -> int:
    os.environ["CORRAL_HOME"] = str(folder / "home")
    for name in ("CORRAL_RUN", "CORRAL_SESSION", "CORRAL_AGENT", "CORRAL_STORE"):
        os.environ.pop(name, None)
    register_adapters()
    stress = ChatStress(folder, wanted, url or f"sqlite:///{folder}/corral.db")
    start = time.monotonic()
    try:
        with corral.open(stress.url, actor="stress") as store:
            stress.prepare(store)
            stress.begin()
            stress.inject_faults(store)
            fault_seconds = time.monotonic() - start
            recovery_seconds = stress.recover(store)
            wrong = stress.judge(store)
            counts = stress.fetch_shown()
            rows = {
                "chat": f"{wanted.places} places, {wanted.agents} agents, {stress.total} messages, "
                f"seed {wanted.seed}",
                "kills": f"{sum(stress.kills.values())} ({format_counts(stress.kills)})",
                "seconds": f"{fault_seconds:.0f} of kills, {recovery_seconds:.0f} until recovered",
                "runs": str(_count_runs(store)),
                "answered": f"{stress.total - stress.dead} of {stress.total}",
                "dead and reported": str(stress.dead),
                "wrong": str(len(wrong)),
                **{f"  {name}": str(n) for name, n in sorted(counts.items())},
            }
    finally:
        stress.end()
    engine = "postgres" if stress.url.startswith("postgres") else "sqlite"
    batch = Batch(
        engine,
        "chat",
        wanted.seed,
        dict(stress.kills),
        fault_seconds + recovery_seconds,
        len(wrong),
    )
    batch.runs, batch.command = int(rows["runs"]), " ".join(sys.argv[1:])
    append_batch(wanted.into, batch)
    width = max(map(len, rows))
    print("\n".join(f"{name.ljust(width)}  {value}" for name, value in rows.items()))
    for text in wrong[:30]:
        print(f"  ! {text}")
    return 1 if wrong else 0


def _count_runs(store: Corral) -> int:
    count, after = 0, None
    while True:
        page = store.runs.list(after=after, limit=1_000)
        count += len(page.items)
        if (after := page.next) is None:
            return count


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture --chat")
    for name, default in (("places", 20), ("agents", 5), ("messages", 25), ("kills", 200)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    parser.add_argument("--postgres", action="store_true", help="use a private PostgreSQL server")
    parser.add_argument("--store", metavar="URL", help="use this empty store")
    parser.add_argument("--into", metavar="FILE", help="append a line to this file")
    parser.add_argument("--host", metavar="URL", help=argparse.SUPPRESS)
    wanted = parser.parse_args(arguments)
    if wanted.host:
        host(wanted.host)
        return 0
    with (
        folder_for("chat", keep=wanted.keep) as folder,
        store_for(wanted.store, postgres=wanted.postgres) as url,
    ):
        return run(wanted, folder, url)


if __name__ == "__main__":
    sys.exit(main())
