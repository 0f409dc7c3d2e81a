"""Telling somebody outside: a webhook, a command, the desktop.

Each function returns when it was told, and raises `Undelivered` with one sentence when it was not.
What is sent may come from an agent, so nothing of it is ever read as an option or a script.
"""

import hashlib
import hmac
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import (
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    Request,
    build_opener,
)

WEBHOOK_SECONDS = 10.0
COMMAND_SECONDS = 30.0
SIGNATURE = "Corral-Signature"
MAX_TOLD = 200
_NOT_IMPLEMENTED = 501  # the method; Python's own server says so


class Undelivered(Exception):
    """The notification was not delivered. `details["reason"]` is the machine-readable cause."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.details = {"reason": reason}


def signature(secret: str, body: bytes, at: int) -> str:
    """What a receiver checks: `t=SECONDS,v1=HEX`, an HMAC-SHA256 over `SECONDS.` and the body."""
    seconds = at // 1_000
    code = hmac.new(secret.encode(), b"%d." % seconds + body, hashlib.sha256).hexdigest()
    return f"t={seconds},v1={code}"


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """What is meant for one address goes to no other."""


class _Line:
    """The connections of one request, which are cut when its time is over.

    A socket's own timeout begins anew with every byte, and a server may send one now and then.
    """

    def __init__(self) -> None:
        self.over = False
        self._connections: list[HTTPConnection] = []

    def plain(self, *args: Any, **named: Any) -> HTTPConnection:
        return self._keep(HTTPConnection(*args, **named))

    def secure(self, *args: Any, **named: Any) -> HTTPConnection:
        return self._keep(HTTPSConnection(*args, **named))

    def _keep(self, connection: HTTPConnection) -> HTTPConnection:
        self._connections.append(connection)
        connect = connection.connect

        def connect_in_time() -> None:
            connect()
            if self.over:  # `cut` found no socket yet
                self.cut()

        connection.connect = connect_in_time  # type: ignore[method-assign]
        return connection

    def cut(self) -> None:
        self.over = True
        for connection in self._connections:
            if connection.sock is not None:
                with suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)


def _send(request: Request, seconds: float) -> int:
    """The status of the answer."""
    line = _Line()

    class Plain(HTTPHandler):
        def http_open(self, request: Request) -> HTTPResponse:
            return self.do_open(line.plain, request)

    class Secure(HTTPSHandler):
        def https_open(self, request: Request) -> HTTPResponse:
            return self.do_open(line.secure, request)

    timer = threading.Timer(seconds, line.cut)
    timer.daemon = True
    timer.start()
    try:
        with build_opener(_NoRedirect, Plain, Secure).open(request, timeout=seconds) as answer:
            return int(answer.status)
    except HTTPError as error:
        error.close()
        return error.code
    except (OSError, HTTPException) as error:
        late = line.over or isinstance(error, TimeoutError)
        if late or isinstance(getattr(error, "reason", None), TimeoutError):
            raise Undelivered(f"it did not answer within {seconds:g} s", "timeout") from None
        raise
    finally:
        timer.cancel()


def post(
    url: str, body: bytes, *, at: int, secret: str | None = None, seconds: float = WEBHOOK_SECONDS
) -> None:
    """POST a JSON body; only an answer of 200 to 299 counts. Redirects are not followed."""
    headers = {"Content-Type": "application/json"}
    if secret is not None:
        headers[SIGNATURE] = signature(secret, body, at)
    status = _status(url, "POST", headers, body, seconds=seconds)
    if not 200 <= status < 300:
        raise Undelivered(f"it answered {status}", "bad_status")


def reach(url: str, *, seconds: float = WEBHOOK_SECONDS) -> None:
    """Ask for the head of what is at a URL, which tells nobody anything: whoever only takes what is
    posted, or signed, may say so. Redirects are not followed."""
    status = _status(url, "HEAD", {}, None, seconds=seconds)
    if status in (404, 410) or (status >= 500 and status != _NOT_IMPLEMENTED):
        raise Undelivered(f"it answered {status}", "bad_status")


def _status(
    url: str, method: str, headers: dict[str, str], body: bytes | None, *, seconds: float
) -> int:
    if urlsplit(url).scheme not in ("http", "https"):
        raise Undelivered("the URL does not begin with http:// or https://", "bad_url")
    named = {"User-Agent": "corral", **headers}
    try:
        status = _send(Request(url, data=body, headers=named, method=method), seconds)  # noqa: S310
    except URLError as error:
        raise Undelivered(f"it cannot be reached: {error.reason}", "unreachable") from None
    except (OSError, HTTPException, ValueError) as error:
        # Their texts may repeat the URL, which may be a secret.
        raise Undelivered(f"it cannot be reached ({type(error).__name__})", "unreachable") from None
    if 300 <= status < 400:
        raise Undelivered(
            f"it answered {status} and points elsewhere, and redirects are not followed; "
            "give the address it points to",
            "redirect",
        )
    return status


def run(command: str, body: bytes, *, seconds: float = COMMAND_SECONDS) -> None:
    """Run a command with the JSON on its standard input; only exit code 0 counts.

    One that takes too long is ended with everything that it started.
    """
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as told:
        given.write(body + b"\n")  # what is added to a file is a line there
        given.seek(0)
        try:
            process = subprocess.Popen(
                shlex.split(command),
                stdin=given,
                stdout=subprocess.DEVNULL,
                stderr=told,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise Undelivered(f"the command cannot be run: {error}", "not_started") from None
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Undelivered(f"the command did not end within {seconds:g} s", "timeout") from None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if code != 0:
            raise Undelivered(f"the command ended with {code}{_last_line(told)}", "exit_code")


def _last_line(told: Any) -> str:
    told.seek(0, os.SEEK_END)
    told.seek(max(told.tell() - 4 * MAX_TOLD, 0))
    lines = told.read().decode(errors="replace").strip().splitlines()
    return f": {lines[-1][-MAX_TOLD:]}" if lines else ""


def show(title: str, text: str, *, seconds: float = COMMAND_SECONDS) -> None:
    """Show a notification on this machine's screen."""
    if shutil.which("notify-send"):
        words = ["notify-send", "--app-name=corral", "--", title, text]
    elif sys.platform == "darwin" and shutil.which("osascript"):
        script = "display notification (item 2 of argv) with title (item 1 of argv)"
        words = ["osascript", "-e", "on run argv", "-e", script, "-e", "end run", title, text]
    else:
        raise Undelivered(
            "this machine has no notify-send (libnotify) to show notifications with", "no_desktop"
        )
    run(shlex.join(words), b"", seconds=seconds)
