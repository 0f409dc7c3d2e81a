"""Send notifications: to a webhook, to a command, to the desktop.

Each function returns after the delivery and raises `Undelivered` with one sentence otherwise.
The content may come from an agent, so it is never parsed as an option or a script.
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
SIGNATURE_HEADER = "Corral-Signature"
MAX_ERROR_LENGTH = 200
_NOT_IMPLEMENTED = 501  # method not implemented, for example by Python's http.server


class Undelivered(Exception):
    """The notification was not delivered. `details["reason"]` is the machine-readable cause."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.details = {"reason": reason}


def sign_body(secret: str, body: bytes, at: int) -> str:
    """Return the signature header `t=SECONDS,v1=HEX`: an HMAC-SHA256 of `SECONDS.` and the body."""
    seconds = at // 1_000
    code = hmac.new(secret.encode(), b"%d." % seconds + body, hashlib.sha256).hexdigest()
    return f"t={seconds},v1={code}"


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Do not follow redirects: the content is meant for one address only."""


class _RequestConnections:
    """The connections of one request, closed when its total time is over.

    The timeout of a socket restarts with every byte, so a server that sends a byte now and then
    would never time out.
    """

    def __init__(self) -> None:
        self.is_over = False
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
            if self.is_over:  # the time was over before the socket existed
                self.close_all()

        connection.connect = connect_in_time  # type: ignore[method-assign]
        return connection

    def close_all(self) -> None:
        self.is_over = True
        for connection in self._connections:
            if connection.sock is not None:
                with suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)


def _send(request: Request, seconds: float) -> int:
    """Send a request and return the status of the response."""
    connections = _RequestConnections()

    class Plain(HTTPHandler):
        def http_open(self, request: Request) -> HTTPResponse:
            return self.do_open(connections.plain, request)

    class Secure(HTTPSHandler):
        def https_open(self, request: Request) -> HTTPResponse:
            return self.do_open(connections.secure, request)

    timer = threading.Timer(seconds, connections.close_all)
    timer.daemon = True
    timer.start()
    try:
        with build_opener(_NoRedirect, Plain, Secure).open(request, timeout=seconds) as response:
            return int(response.status)
    except HTTPError as error:
        error.close()
        return error.code
    except (OSError, HTTPException) as error:
        late = connections.is_over or isinstance(error, TimeoutError)
        if late or isinstance(getattr(error, "reason", None), TimeoutError):
            raise Undelivered(f"no answer within {seconds:g} s", "timeout") from None
        raise
    finally:
        timer.cancel()


def post_webhook(
    url: str, body: bytes, *, at: int, secret: str | None = None, seconds: float = WEBHOOK_SECONDS
) -> None:
    """POST a JSON body. Only a status of 200 to 299 is a success; redirects are not followed."""
    headers = {"Content-Type": "application/json"}
    if secret is not None:
        headers[SIGNATURE_HEADER] = sign_body(secret, body, at)
    status = _request("POST", url, headers, body, seconds=seconds)
    if not 200 <= status < 300:
        raise Undelivered(f"it answered {status}", "bad_status")


def check_webhook(url: str, *, seconds: float = WEBHOOK_SECONDS) -> None:
    """Check with a HEAD request that a URL can be reached, without sending a notification.

    A server that accepts only POST or signed requests may answer with an error status; only 404,
    410 and most 5xx statuses fail the check. Redirects are not followed.
    """
    status = _request("HEAD", url, {}, None, seconds=seconds)
    if status in (404, 410) or (status >= 500 and status != _NOT_IMPLEMENTED):
        raise Undelivered(f"it answered {status}", "bad_status")


def _request(
    method: str, url: str, headers: dict[str, str], body: bytes | None, *, seconds: float
) -> int:
    if urlsplit(url).scheme not in ("http", "https"):
        raise Undelivered("the URL does not begin with http:// or https://", "bad_url")
    all_headers = {"User-Agent": "corral", **headers}
    try:
        status = _send(Request(url, data=body, headers=all_headers, method=method), seconds)  # noqa: S310
    except URLError as error:
        raise Undelivered(f"it cannot be reached: {error.reason}", "unreachable") from None
    except (OSError, HTTPException, ValueError) as error:
        # Do not include the text of the error: it may repeat the URL, which may be a secret.
        raise Undelivered(f"it cannot be reached ({type(error).__name__})", "unreachable") from None
    if 300 <= status < 400:
        raise Undelivered(
            f"it answered {status}, and redirects are not followed; use the address that it "
            "redirects to",
            "redirect",
        )
    return status


def run_command(command: str, body: bytes, *, seconds: float = COMMAND_SECONDS) -> None:
    """Run a command with the JSON on its standard input; only exit code 0 is a success.

    After a timeout, the command is killed with its process group.
    """
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stderr:
        stdin.write(body + b"\n")  # so that a command that appends to a file writes a line
        stdin.seek(0)
        try:
            process = subprocess.Popen(
                shlex.split(command),
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
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
            raise Undelivered(
                f"the command exited with {code}{_format_last_line(stderr)}", "exit_code"
            )


def _format_last_line(stderr: Any) -> str:
    stderr.seek(0, os.SEEK_END)
    stderr.seek(max(stderr.tell() - 4 * MAX_ERROR_LENGTH, 0))
    lines = stderr.read().decode(errors="replace").strip().splitlines()
    return f": {lines[-1][-MAX_ERROR_LENGTH:]}" if lines else ""


def show_on_desktop(title: str, text: str, *, seconds: float = COMMAND_SECONDS) -> None:
    """Show a notification on the desktop of this machine."""
    if shutil.which("notify-send"):
        command = ["notify-send", "--app-name=corral", "--", title, text]
    elif sys.platform == "darwin" and shutil.which("osascript"):
        script = "display notification (item 2 of argv) with title (item 1 of argv)"
        command = ["osascript", "-e", "on run argv", "-e", script, "-e", "end run", title, text]
    else:
        raise Undelivered("notify-send (libnotify) is not installed", "no_desktop")
    run_command(shlex.join(command), b"", seconds=seconds)
