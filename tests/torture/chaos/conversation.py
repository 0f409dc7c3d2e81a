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
told = sys.stdin.read().rpartition("\\n\\nNow: ")[2]
print("echo: " + " ".join(re.findall("#[0-9]+", told)))
"""


class ChaosChat:
    def __init__(self, folder: Path, seed: int, here: str | None) -> None:
        """`here` is the address under which nodes with their own network reach this host."""
        register_adapters()
        self.said: list[tuple[str, int]] = []
        self.shown: list[tuple[str, int]] = []
        self._looked = 0
        self._folder = folder
        port = free_port()
        self._own = f"http://127.0.0.1:{port}/"
        self.url = f"http://{here}:{port}/" if here else self._own
        module = [sys.executable, "-m", "tests.torture.chat_platform", str(port), str(seed)]
        self._platform = subprocess.Popen(module)
        deadline = time.monotonic() + 20
        while not self.look() and time.monotonic() < deadline:
            time.sleep(0.05)
        if here is not None:
            self._door = socket.create_server((here, port))
            threading.Thread(target=self._let_in, daemon=True).start()

    def prepare(self, store: Corral) -> None:
        program = self._folder / "echo"
        program.write_text(ANSWERS.format(python=sys.executable))
        program.chmod(0o755)
        store.agents.create("echo", command=str(program))
        store.channels.add("once", "once", config={"url": self.url}, policy="public")
        store.wirings.add("echo", channel="once", trigger="mention")

    def say(self) -> None:
        """Post a message; it is on the platform when this returns."""
        number = len(self.said) + 1
        place = PLACES[number % len(PLACES)]
        event = {"event_id": f"e{number}", "place": place, "sender": "ann"}
        event["text"] = f"@echo #{number}"
        ask(self._own, what="say", kind="once", events=[event])
        self.said.append((place, number))

    def look(self) -> bool:
        """Fetch what people see; False if the platform does not respond."""
        with suppress(OSError, ValueError):
            _, result = ask(self._own, what="look", after=self._looked)
            self._looked += len(result["shown"])
            for item in result["shown"]:
                numbers = map(int, _NUMBER.findall(item["text"]))
                self.shown += [(item["place"], number) for number in numbers]
            return True
        return False

    def unanswered(self) -> list[str]:
        self.look()
        return [f"#{n} in {place}" for place, n in self.said if (place, n) not in self.shown]

    @staticmethod
    def heard(store: Corral) -> list[int]:
        """Return the received messages, in the order in which they were stored."""
        result, after = {}, None
        while True:
            page = store.messages.list(after=after, limit=200)
            for item in page.items:
                if item.direction == "in":
                    result[int(item.id.removeprefix("msg_"))] = item.event_id
            if (after := page.next) is None:
                break
        return [int(result[number].removeprefix("in:e")) for number in sorted(result)]

    def close(self) -> None:
        self._platform.kill()
        self._platform.wait()

    # -- a forwarder to the platform, which listens on loopback only ------------------------------

    def _let_in(self) -> None:
        while True:
            client, _ = self._door.accept()
            threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        result = ("127.0.0.1", self._door.getsockname()[1])
        with suppress(OSError), client, socket.create_connection(result) as server:
            other: dict[Any, Any] = {client: server, server: client}
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    data = ready.recv(1 << 16)
                    if not data:
                        return
                    other[ready].sendall(data)
