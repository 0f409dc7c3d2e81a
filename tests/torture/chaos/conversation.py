"""A chat during the chaos: people on a faulty platform write to an agent.

Each message must be answered once, in the order of its place.
"""

import re
import select
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from corral.api import Corral
from tests.support.postgres_server import free_port
from tests.torture.chat_platform import ask, register_adapters

PLACES = ("hall", "yard")
_NUMBER = re.compile(r"#(\d+)")
ANSWERS = """\
#!{python} -SE
import re, sys
prompt = sys.stdin.read().rpartition("\\n\\nNow: ")[2]
print("echo: " + " ".join(re.findall("#[0-9]+", prompt)))
"""


class ChaosChat:
    def __init__(self, folder: Path, seed: int, host: str | None) -> None:
        """`host` is the address under which nodes with their own network reach this host."""
        register_adapters()
        self.posted: list[tuple[str, int]] = []
        self.shown: list[tuple[str, int]] = []
        self._fetched = 0
        self._folder = folder
        port = free_port()
        self._local_url = f"http://127.0.0.1:{port}/"
        self.url = f"http://{host}:{port}/" if host else self._local_url
        module = [sys.executable, "-m", "tests.torture.chat_platform", str(port), str(seed)]
        self._platform = subprocess.Popen(module)
        deadline = time.monotonic() + 20
        while not self.fetch_shown() and time.monotonic() < deadline:
            time.sleep(0.05)
        if host is not None:
            self._listener = socket.create_server((host, port))
            threading.Thread(target=self._accept_clients, daemon=True).start()

    def prepare(self, store: Corral) -> None:
        program = self._folder / "echo"
        program.write_text(ANSWERS.format(python=sys.executable))
        program.chmod(0o755)
        store.agents.create("echo", command=str(program))
        store.channels.add("once", "once", config={"url": self.url}, policy="public")
        store.wirings.add("echo", channel="once", trigger="mention")

    def post_message(self) -> None:
        """Post a message; it is on the platform when this returns."""
        number = len(self.posted) + 1
        place = PLACES[number % len(PLACES)]
        event = {"event_id": f"e{number}", "place": place, "sender": "ann"}
        event["text"] = f"@echo #{number}"
        ask(self._local_url, what="say", kind="once", events=[event])
        self.posted.append((place, number))

    def fetch_shown(self) -> bool:
        """Fetch what people see; False if the platform does not respond."""
        with suppress(OSError, ValueError):
            _, result = ask(self._local_url, what="look", after=self._fetched)
            self._fetched += len(result["shown"])
            for item in result["shown"]:
                numbers = map(int, _NUMBER.findall(item["text"]))
                self.shown += [(item["place"], number) for number in numbers]
            return True
        return False

    def list_unanswered(self) -> list[str]:
        self.fetch_shown()
        return [f"#{n} in {place}" for place, n in self.posted if (place, n) not in self.shown]

    @staticmethod
    def list_received(store: Corral) -> list[int]:
        """Return the received messages, in the order in which they were stored."""
        events, after = {}, None
        while True:
            page = store.messages.list(after=after, limit=200)
            for item in page.items:
                if item.direction == "in":
                    events[int(item.id.removeprefix("msg_"))] = item.event_id
            if (after := page.next) is None:
                break
        return [int(events[number].removeprefix("in:e")) for number in sorted(events)]

    def close(self) -> None:
        self._platform.kill()
        self._platform.wait()

    # -- a forwarder to the platform, which listens on loopback only ------------------------------

    def _accept_clients(self) -> None:
        while True:
            client, _ = self._listener.accept()
            threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        address = ("127.0.0.1", self._listener.getsockname()[1])
        with suppress(OSError), client, socket.create_connection(address) as server:
            other: dict[Any, Any] = {client: server, server: client}
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    data = ready.recv(1 << 16)
                    if not data:
                        return
                    other[ready].sendall(data)
