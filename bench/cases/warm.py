"""Latency from a webhook to a long-running agent, with a real daemon."""

import sys
import time
from pathlib import Path

import msgspec
from tests.support.daemon_nodes import Machine
from tests.support.home import wait_until

from bench.cases.history import ENGINES, Engine
from bench.harness import Bar, Bench, Row, Spread, percentile
from corral.adapters import notifications

TITLE = "From a webhook to the agent's run"
ABOUT = """
    A real daemon, a webhook channel, and a session with a long-running agent that waits in
    `messages.next`. Measured by the monotonic clock from just before the signed request until
    the agent has the text: HTTP, signature and disk included. One message after the other. For
    comparison, a session without a run: the time until the agent's program starts.
"""
SECRET = "a shared secret"  # noqa: S105 - of a channel that exists for a minute
AGENT = """\
#!{python}
import os, time
start = time.monotonic_ns()
import corral
file = open({file!r}, "a")
with corral.open(os.environ["CORRAL_STORE"], actor="agent:ada") as store:
    print(start, "started", file=file, flush=True)
    run, after = os.environ["CORRAL_RUN"], None
    while (batch := store.messages.next(run, after=after, wait_ms=60_000)) is not None:
        print(time.monotonic_ns(), batch.text.rpartition(" ")[2], file=file, flush=True)
        after = batch.letters[-1]
        if batch.text.endswith("end"):
            break
"""


def measure(bench: Bench) -> list[Row]:
    return [row for engine in ENGINES for row in _on(bench, engine)]


def _on(bench: Bench, engine: Engine) -> list[Row]:
    file = bench.new_file()
    url = f"sqlite:///{file}" if engine == "sqlite" else bench.server.new_database()
    machine = Machine(file.parent / "machine", url, "bench")
    machine.env["BENCH_SECRET"] = SECRET
    channel = WebhookChannel(machine)
    try:
        machine.up()
        first_delay = channel.send("first", "started")
        bench.progress(f"a long-running agent on {engine}")
        for number in range(10):
            channel.send(f"warm-up-{number}")
        delays = [channel.send(str(number)) for number in range(bench.pick(1_000, 100))]
        channel.send("end")
        machine.corral("down")
    finally:
        machine.kill_processes()
    name = ENGINES[engine]
    return [
        Row(f"{name}, median", Spread.of([percentile(delays, 50)]), unit="ms"),
        Row(f"{name}, p99", Spread.of([percentile(delays, 99)]), Bar("<", 100), unit="ms"),
        Row(f"{name}, a session without a run", Spread.of([first_delay]), unit="ms"),
    ]


class WebhookChannel:
    """A channel wired to an agent, and the file in which its run records messages."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._notes = machine.folder / "notes"
        program = machine.folder / "agent"
        program.write_text(AGENT.format(python=sys.executable, file=str(self._notes)))
        program.chmod(0o755)
        self._seen = 0
        with machine.store() as store:
            store.secrets.set("signing", "env:BENCH_SECRET")
            store.agents.create("ada", command=str(program))
            store.channels.add("chat", "webhook", secrets={"secret": "signing"}, policy="public")
            store.wirings.add("ada", channel="chat")

    def send(self, text: str, marker: str | None = None) -> float:
        """Send a message and return the milliseconds until the run has recorded it."""
        body = msgspec.json.encode(
            {"event_id": text, "place": "room", "sender": "ann", "text": f"say {text}"}
        )
        start = time.monotonic_ns()
        notifications.post_webhook(
            f"{self._machine.link.partition('?')[0].rstrip('/')}/channels/chat",
            body,
            at=time.time_ns() // 1_000_000,
            secret=SECRET,
        )
        return (self._wait_for(marker or text) - start) / 1e6

    def _wait_for(self, marker: str) -> int:
        def look() -> int:
            lines = self._lines()
            return next((int(at) for at, word in lines if word == marker), 0)

        return wait_until(look, f"the run has recorded {marker}")

    def _lines(self) -> list[list[str]]:
        if not self._notes.exists():
            return []
        with Path(self._notes).open() as file:
            file.seek(self._seen)
            results = [line.split() for line in file.readlines() if line.endswith("\n")]
            self._seen = file.tell()
        return results
