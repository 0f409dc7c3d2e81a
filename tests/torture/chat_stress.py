"""Chats under stress: a faulty platform, real hosts and real runs, all killed at random.

    python -m tests.torture --storm --places 20 --agents 5 --messages 500 --kills 200 --seed 1

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
from corral.adapters import process
from corral.api import Corral
from corral.domain.chat.model import Message
from corral.domain.mail.model import Letter
from tests.support.invariants import check_store
from tests.support.postgres_server import free_port
from tests.torture.chat_platform import KINDS, ask, register_adapters
from tests.torture.ledger import Batch, counted, note
from tests.torture.workspace import folder_for, store_for

NAMES = ("ada", "ben", "cyd", "dan", "eve", "fay", "gus", "hal")
ROLES = ("supervisor", "guard", "agent")
LONGEST = 180.0
"""Seconds without any change, after which what is not answered is taken for lost."""
OPERATOR = "user:operator"
_NUMBER = re.compile(r"#(\d+)")

# It stays for a moment and answers what comes; every other one answers once and exits.
STAYS = """\
#!{python}
import os, re, sys
import corral

def answer(text):
    return os.environ["CORRAL_AGENT"] + ": " + " ".join(re.findall("#[0-9]+", text))

said = answer(sys.stdin.read().rpartition("\\n\\nNow: ")[2])  # what was said before comes first
with corral.open(os.environ["CORRAL_STORE"], actor="agent:" + os.environ["CORRAL_AGENT"]) as store:
    run, after = os.environ["CORRAL_RUN"], None
    while (told := store.messages.next(run, after=after, answer=said, wait_ms=300)) is not None:
        after, said = told.letters[-1], answer(told.text)
"""
ONCE = """\
#!{python} -SE
import os, re, sys
told = sys.stdin.read().rpartition("\\n\\nNow: ")[2]
print(os.environ["CORRAL_AGENT"] + ": " + " ".join(re.findall("#[0-9]+", told)))
"""


class Storm:
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
        self.said: dict[int, tuple[str, str, str]] = {}
        """Kind, place and agent of each message that was said."""
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
            text = STAYS if number % 2 == 0 else ONCE
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
                self.look()
                break
            assert time.monotonic() < deadline, "the platform did not start"
            time.sleep(0.05)
        self.start_host()

    def start_host(self) -> None:
        command = [sys.executable, "-m", "tests.torture.storm", "--host", self.url]
        self._host = subprocess.Popen(command, stdout=self._log, stderr=self._log)

    def end(self) -> None:
        for one in (self._host, self._platform):
            if one is not None:
                one.kill()
                one.wait()
        mark = f"CORRAL_HOME={self.folder / 'home'}".encode()
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != os.getpid():
                with suppress(OSError):
                    if mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                        os.kill(int(name), signal.SIGKILL)

    def look(self) -> dict[str, Any]:
        """Add the newly visible messages of the platform and its counters."""
        _, result = ask(self.platform_url, what="look", after=len(self._shown))
        self._shown += result.pop("shown")
        return result

    # -- the storm -------------------------------------------------------------------------------

    def speak(self, upto: int) -> None:
        events: dict[str, list[dict[str, Any]]] = defaultdict(list)
        while len(self.said) < upto:
            number = len(self.said) + 1
            kind, place = self.random.choice(self.places)
            agent = self.random.choice(self.agents)
            self.said[number] = kind, place, agent
            words = {"event_id": f"e{number}", "place": place, "sender": "ann"}
            events[kind].append(words | {"text": f"@{agent} #{number}"})
        for kind, batch in events.items():
            ask(self.platform_url, what="say", kind=kind, events=batch)

    def inject_faults(self, store: Corral) -> None:
        """Kill processes while people write, so that there is always work in flight."""
        wanted, result = self.wanted.kills, time.monotonic()
        while (killed := sum(self.kills.values())) < wanted:
            self.speak(self.total * (killed + 1) // (wanted + 1))
            time.sleep(self.random.choice((0.05, 0.2, 0.5, 1.0, 2.0)))
            if self.random.random() < 0.5:
                self.kill_host()
            else:
                self.kill_runner(store)
            if time.monotonic() - result > 15:
                result = time.monotonic()
                self.look()
                print(
                    f"  {killed} kills, {len(self.said)} said, {self.answered()} answered",
                    flush=True,
                )
        self.speak(self.total)

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
        who = Torture.find(run, role)
        if who is not None and process.send_signal(who, signal.SIGKILL):
            self.kills[role] += 1

    def answered(self) -> int:
        return len({n for item in self._shown for n in _numbers(item["text"])})

    def recover(self, store: Corral) -> float:
        """Wait until everything is answered or reported as dead, or nothing changes; return the
        seconds."""
        began = moved = result = time.monotonic()
        known = -1
        while time.monotonic() < moved + LONGEST:
            self.look()
            answered, waiting = self.answered(), len(_waiting(store))
            if not waiting and answered >= self.total:
                break
            if (now := time.monotonic()) > result + 15:
                result = now
                print(f"  {answered} answered, {waiting} letters on their way", flush=True)
            if answered - waiting != known:
                known, moved = answered - waiting, time.monotonic()
            if self._host is not None and self._host.poll() is not None:
                self.start_host()
            time.sleep(0.5)
        return time.monotonic() - began

    # -- the checks -------------------------------------------------------------------------------

    def judge(self, store: Corral) -> list[str]:
        self.look()
        check_store(store)
        messages = _messages(store)
        values = {
            _told_number(message): message for message in messages if message.direction == "in"
        }
        wrong = [f"#{n} was never stored" for n in self.said if n not in values]
        answers, deaths = self._seen()
        reported = _reported(store)
        for number, (kind, place, agent) in self.said.items():
            seen, dead = answers[number], number in deaths or number in reported
            if len(seen) > 1:
                wrong.append(f"#{number} was answered {len(seen)} times: {seen}")
            elif seen and seen != [(kind, place, agent)]:
                wrong.append(f"#{number}, said to {(kind, place, agent)}, was answered by {seen}")
            elif not seen and not dead:
                wrong.append(f"#{number} is lost: {_story(store, values.get(number))}")
        wrong += self._out_of_order(messages, values)
        wrong += [f"{letter.mailbox} still has {letter.id}" for letter in _waiting(store)]
        self.dead = sum(not answers[n] for n in self.said)
        return wrong

    def _seen(self) -> tuple[dict[int, list[tuple[str, str, str]]], set[int]]:
        answers: dict[int, list[tuple[str, str, str]]] = defaultdict(list)
        deaths: set[int] = set()
        for item in self._shown:
            if item["text"].startswith("Your message"):
                deaths |= {int(n) for n in _NUMBER.findall(item["text"])}
            for number in _numbers(item["text"]):
                name = item["text"].partition(":")[0]
                answers[number].append((item["kind"], item["place"], name))
        return answers, deaths

    def _out_of_order(self, messages: list[Message], told: dict[int, Message]) -> list[str]:
        wrong = []
        lines: dict[tuple[str, str], list[int]] = defaultdict(list)
        for item in self._shown:
            name = item["text"].partition(":")[0]
            lines[item["place"], name] += [_place_of(told[n]) for n in _numbers(item["text"])]
        for (place, name), seqs in lines.items():
            if any(first >= then for first, then in pairwise(seqs)):
                wrong.append(f"{name} answered out of order in {place}")
        sent = {id: item for item in messages for id in item.platform_ids}
        shown: dict[str, list[int]] = defaultdict(list)
        for item in self._shown:
            if item["id"] in sent:
                shown[item["place"]].append(_place_of(sent[item["id"]]))
        for place, seqs in shown.items():
            if any(first >= then for first, then in pairwise(seqs)):
                wrong.append(f"what was sent to {place} is shown in another order")
        return wrong


def _numbers(text: str) -> list[int]:
    """Return the messages that a reply answers."""
    name, colon, rest = text.partition(": ")
    return [int(n) for n in _NUMBER.findall(rest)] if colon and name in NAMES else []


def _place_of(message: Message) -> int:
    return int(message.id.removeprefix("msg_"))


def _told_number(message: Message) -> int:
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


def _story(store: Corral, message: Message | None) -> str:
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
    """The host: it receives, starts turns, finishes them and sends, until it is killed."""
    from corral.daemon.chat import ChatLoop
    from corral.daemon.dispatcher import Dispatcher
    from corral.daemon.loop_manager import LoopManager
    from corral.daemon.reaper import Reaper

    register_adapters()
    with corral.open(url, actor="host") as store:
        LoopManager(store, loops=[Dispatcher(), Reaper(), ChatLoop()]).begin()
        parent = os.getppid()
        while os.getppid() == parent:
            time.sleep(0.5)


def run(wanted: argparse.Namespace, folder: Path, url: str | None = None) -> int:
    os.environ["CORRAL_HOME"] = str(folder / "home")
    for name in ("CORRAL_RUN", "CORRAL_SESSION", "CORRAL_AGENT", "CORRAL_STORE"):
        os.environ.pop(name, None)
    register_adapters()
    storm = Storm(folder, wanted, url or f"sqlite:///{folder}/corral.db")
    began = time.monotonic()
    try:
        with corral.open(storm.url, actor="storm") as store:
            storm.prepare(store)
            storm.begin()
            storm.inject_faults(store)
            raged = time.monotonic() - began
            calm = storm.recover(store)
            wrong = storm.judge(store)
            counts = storm.look()
            rows = {
                "storm": f"{wanted.places} places, {wanted.agents} agents, {storm.total} messages, "
                f"seed {wanted.seed}",
                "kills": f"{sum(storm.kills.values())} ({counted(storm.kills)})",
                "seconds": f"{raged:.0f} of kills, {calm:.0f} until all was quiet",
                "runs": str(_count_runs(store)),
                "answered": f"{storm.total - storm.dead} of {storm.total}",
                "dead, and told": str(storm.dead),
                "wrong": str(len(wrong)),
                **{f"  {name}": str(n) for name, n in sorted(counts.items())},
            }
    finally:
        storm.end()
    engine = "postgres" if storm.url.startswith("postgres") else "sqlite"
    batch = Batch(engine, "storm", wanted.seed, dict(storm.kills), raged + calm, len(wrong))
    batch.runs, batch.command = int(rows["runs"]), " ".join(sys.argv[1:])
    note(wanted.into, batch)
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
    parser = argparse.ArgumentParser(prog="python -m tests.torture --storm")
    for name, default in (("places", 20), ("agents", 5), ("messages", 25), ("kills", 200)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="leave the folder for a look")
    parser.add_argument("--postgres", action="store_true", help="on a PostgreSQL of its own")
    parser.add_argument("--store", metavar="URL", help="on this one, which is empty")
    parser.add_argument("--into", metavar="FILE", help="add a line to this file")
    parser.add_argument("--host", metavar="URL", help=argparse.SUPPRESS)
    wanted = parser.parse_args(arguments)
    if wanted.host:
        host(wanted.host)
        return 0
    with (
        folder_for("storm", keep=wanted.keep) as folder,
        store_for(wanted.store, postgres=wanted.postgres) as url,
    ):
        return run(wanted, folder, url)


if __name__ == "__main__":
    sys.exit(main())
