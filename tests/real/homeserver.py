"""A real Matrix server on loopback, and users of its client-server API."""

import hashlib
import hmac
import json
import signal
import socket
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

API = "/_matrix/client/v3"
NAME = "chat.test"
SECONDS = 60.0
PASSWORD = "test password"
LOG = """
version: 1
formatters: {plain: {format: '%(asctime)s %(levelname)s %(name)s %(message)s'}}
handlers: {file: {class: logging.FileHandler, filename: FILE, formatter: plain}}
root: {level: WARNING, handlers: [file]}
disable_existing_loggers: false
"""
NO_LIMIT = {"per_second": 1_000, "burst_count": 1_000}


class Homeserver:
    """Synapse with a SQLite file in its own folder; it can be stopped and restarted."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._write(settings)

    def _write(self, settings: dict[str, Any]) -> None:
        (self.folder / "log.yaml").write_text(LOG.replace("FILE", str(self.folder / "log")))
        config = {
            "server_name": NAME,
            "listeners": [
                {
                    "port": self.port,
                    "type": "http",
                    "bind_addresses": ["127.0.0.1"],
                    "resources": [{"names": ["client", "media"]}],
                }
            ],
            "database": {
                "name": "sqlite3",
                "args": {"database": str(self.folder / "homeserver.db")},
            },
            "log_config": str(self.folder / "log.yaml"),
            "media_store_path": str(self.folder / "media"),
            "signing_key_path": str(self.folder / "signing.key"),
            "registration_shared_secret": "shared",
            "macaroon_secret_key": "macaroon",
            "form_secret": "form",
            "report_stats": False,
            "trusted_key_servers": [],
            "presence": {"enabled": False},
            "rc_message": NO_LIMIT,
            "rc_registration": NO_LIMIT,
            "rc_joins": {"local": NO_LIMIT, "remote": NO_LIMIT},
            "rc_invites": {"per_room": NO_LIMIT, "per_user": NO_LIMIT, "per_issuer": NO_LIMIT},
            "rc_login": {"address": NO_LIMIT, "account": NO_LIMIT, "failed_attempts": NO_LIMIT},
        }
        # Its configuration is YAML, of which JSON is a subset.
        (self.folder / "config.yaml").write_text(json.dumps(config | settings))

    @property
    def command(self) -> list[str]:
        program = [sys.executable, "-m", "synapse.app.homeserver"]
        return [*program, "--config-path", str(self.folder / "config.yaml")]

    def start(self) -> "Homeserver":
        if not (self.folder / "signing.key").exists():
            command = [*self.command, "--generate-keys"]
            subprocess.run(command, cwd=self.folder, check=True, capture_output=True)
        with (self.folder / "out").open("ab") as out:
            self._process = subprocess.Popen(self.command, cwd=self.folder, stdout=out, stderr=out)
        deadline = time.monotonic() + SECONDS
        while not self._is_ready():
            assert self._process.poll() is None, (self.folder / "out").read_text()[-2_000:]
            assert time.monotonic() < deadline, "the server did not start in time"
            time.sleep(0.05)
        return self

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/_matrix/client/versions", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            try:
                self._process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def create_user(self, name: str, *, admin: bool = False) -> "MatrixUser":
        """Create a user with a new account."""
        path = f"{self.url}/_synapse/admin/v1/register"
        nonce = httpx.get(path).json()["nonce"]
        message = "\0".join((nonce, name, PASSWORD, "admin" if admin else "notadmin"))
        proof = hmac.new(b"shared", message.encode(), hashlib.sha1).hexdigest()
        values = {"nonce": nonce, "username": name, "password": PASSWORD, "mac": proof}
        values["admin"] = admin
        result = httpx.post(path, json=values, timeout=SECONDS).json()
        return MatrixUser(self, result["user_id"], result["access_token"])


class MatrixUser:
    """A user with an account: actions and observations."""

    def __init__(self, server: Homeserver, id: str, token: str) -> None:
        self.id = id
        self.token = token
        self._numbers = count(1)
        headers = {"Authorization": f"Bearer {token}"}
        self._client = httpx.Client(base_url=server.url, headers=headers, timeout=SECONDS)

    def close(self) -> None:
        self._client.close()

    def request(self, method: str, path: str, **options: Any) -> Any:
        """Send a request, and retry while the server is unreachable."""
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                answer = self._client.request(method, path, **options)
                break
            except httpx.TransportError:
                assert time.monotonic() < deadline, "the server is unreachable"
                time.sleep(0.1)
        assert answer.status_code == 200, answer.text
        return answer.json()

    # -- actions ----------------------------------------------------------------------------------

    def create_room(self, *others: "MatrixUser", name: str | None = None) -> str:
        """Create a room and invite the others."""
        values: dict[str, Any] = {"invite": [other.id for other in others]}
        if name:
            values["name"] = name
        return str(self.request("POST", f"{API}/createRoom", json=values)["room_id"])

    def send(self, room: str, content: dict[str, Any], type: str = "m.room.message") -> str:
        path = f"{API}/rooms/{quote(room)}/send/{type}/t{next(self._numbers)}"
        return str(self.request("PUT", path, json=content)["event_id"])

    def post(self, room: str, text: str, *, thread: str | None = None) -> str:
        content: dict[str, Any] = {"msgtype": "m.text", "body": text}
        if thread:
            content["m.relates_to"] = {"rel_type": "m.thread", "event_id": thread}
        return self.send(room, content)

    def edit(self, room: str, event: str, text: str) -> str:
        content = {"msgtype": "m.text", "body": text}
        relation = {"rel_type": "m.replace", "event_id": event}
        return self.send(
            room,
            {"msgtype": "m.text", "body": f"* {text}"}
            | {"m.new_content": content, "m.relates_to": relation},
        )

    def react(self, room: str, event: str, emoji: str) -> str:
        relation = {"rel_type": "m.annotation", "event_id": event, "key": emoji}
        return self.send(room, {"m.relates_to": relation}, "m.reaction")

    def attach(self, room: str, name: str, data: bytes, **fields: Any) -> str:
        url = self.request(
            "POST", "/_matrix/media/v3/upload", params={"filename": name}, content=data
        )["content_uri"]
        info = {"size": len(data), "mimetype": "text/plain"}
        return self.send(
            room, {"msgtype": "m.file", "body": name, "url": url, "info": info} | fields
        )

    # -- observations -----------------------------------------------------------------------------

    def events(self, room: str) -> list[dict[str, Any]]:
        """Return all events of a room, oldest first."""
        results: list[dict[str, Any]] = []
        params = {"dir": "b", "limit": "1000"}
        while True:
            result = self.request("GET", f"{API}/rooms/{quote(room)}/messages", params=params)
            results += result["chunk"]
            if not result.get("end"):
                return results[::-1]
            params["from"] = result["end"]

    def list_texts(self, room: str, other: "MatrixUser") -> list[str]:
        """Return the texts of a user's messages, without edits."""
        return [
            event["content"]["body"]
            for event in self.events(room)
            if event["type"] == "m.room.message"
            and event["sender"] == other.id
            and "m.new_content" not in event["content"]
        ]

    def displayed_text(self, room: str, event: str) -> str:
        """Return the text of a message as a client shows it: the latest edit by its sender."""
        result = self.request("GET", f"{API}/rooms/{quote(room)}/event/{quote(event)}")
        newest = result.get("unsigned", {}).get("m.relations", {}).get("m.replace")
        content = newest["content"]["m.new_content"] if newest else result["content"]
        return str(content["body"])

    def fetch(self, url: str) -> bytes:
        path = f"/_matrix/client/v1/media/download/{url.removeprefix('mxc://')}"
        return self._client.get(path).content
