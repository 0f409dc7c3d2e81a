"""The daemon process: `python -m corral.serve`, as `corral up` starts it.

The daemon opens the store, recovers the state left by earlier daemons of this machine, joins as a
node, runs the background loops, and serves the API and the web pages until it is stopped. It does
not run agents: each run has its own supervisor process, which does not depend on the daemon.
"""

import argparse
import asyncio
import errno
import logging
import logging.handlers
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from types import FrameType
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette

from corral import config
from corral.adapters.daemon_process import (
    DEFAULT_PORT,
    Daemon,
    DaemonLock,
    info_path,
    probe_version,
)
from corral.adapters.processes import process, process_marks
from corral.adapters.redaction import Redaction
from corral.api import Corral, open_service
from corral.daemon.loop_manager import LoopManager
from corral.http.app import LOOPBACK_HOSTS, create_app
from corral.http.connections import build_server_options
from corral.kernel.errors import CorralError, Invalid, Refused, StoreUnavailable
from corral.mcp.http import routes as tool_routes
from corral.web.pages import error_page
from corral.web.pages import routes as page_routes

SHUTDOWN_SECONDS = 10.0  # time for a graceful shutdown
REQUEST_SECONDS = 2  # the part of it for requests in progress
BACKLOG = 1_024
MAX_OPEN_FILES = 8_192  # for open browser tabs, and one for each supervisor
MAX_LOG_BYTES = 1 << 20

log = logging.getLogger("corral")


class Server(uvicorn.Server):
    """A server that leaves signals to the daemon and reports when it is ready."""

    def __init__(self, app: Starlette, started: Callable[[], None]) -> None:
        self.app = app
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="on",
                server_header=False,
                timeout_graceful_shutdown=REQUEST_SECONDS,
                **build_server_options(),
            )
        )
        self._started = started

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._started()


class DaemonServer:
    """The daemon, from start to exit."""

    def __init__(self, options: argparse.Namespace, store: Corral) -> None:
        self._options = options
        self._store = store
        self._server: Server | None = None
        self._is_stopping = False
        self._exit_code = 0

    def run(self) -> int:
        """Serve until stopped, and return the exit code. Call it once, on the main thread."""
        options, store = self._options, self._store
        seat = DaemonLock(store.db.url)
        try:
            with _listen(options.bind, options.port) as listening:
                host = LoopManager(
                    store, slots=options.slots, labels=options.label, give_up=self._give_up
                )
                me = self._describe(listening)
                recovered = host.begin()
                try:
                    app = create_app(
                        store,
                        pages=[*tool_routes(), *page_routes(host.status)],
                        error_page=error_page,
                        status=host.status,
                        allowed_hosts=self._allowed_hosts(),
                    )

                    def started() -> None:
                        seat.publish(me)
                        log.info("serving %s at %s", store.db.url, me.url)
                        _report_start(
                            options.ready, {"daemon": me, "link": me.link, "recovered": recovered}
                        )

                    self._server = Server(app, started)
                    self._install_signal_handlers()
                    if not self._is_stopping:  # a loop may have given up before the server existed
                        asyncio.run(self._server.serve([listening]))
                finally:
                    if not host.end(SHUTDOWN_SECONDS - REQUEST_SECONDS):
                        log.warning(
                            "a loop did not stop in time; another daemon will continue its work"
                        )
        finally:
            seat.release()
        log.info("stopped")
        return self._exit_code

    def _describe(self, listening: socket.socket) -> Daemon:
        store = self._store
        port = int(listening.getsockname()[1])
        shown = _WILDCARD_ADDRESSES.get(self._options.bind, self._options.bind)
        token_file = info_path(store.db.url, ".token")
        home = sha256(f"{process.host()} {token_file}".encode()).hexdigest()[:12]
        store.internal.tokens.ensure_file(token_file, name=f"home-{home}")
        identity = process.identify(os.getpid())
        assert identity is not None
        return Daemon(
            pid=identity.pid,
            start_token=identity.start_token,
            host=identity.host,
            boot_id=identity.boot_id,
            store=store.db.url,
            url=f"http://{f'[{shown}]' if ':' in shown else shown}:{port}",
            port=port,
            token_file=str(token_file),
            started_at=store.now(),
            pid_space=process.pid_namespace(),
        )

    def _allowed_hosts(self) -> set[str]:
        """Return the accepted Host headers; others may be a DNS rebinding attack."""
        names = {*LOOPBACK_HOSTS, *self._options.allow_host}
        return names | {
            socket.gethostname()
            if self._options.bind in _WILDCARD_ADDRESSES
            else self._options.bind
        }

    # -- shutdown --------------------------------------------------------------------------------

    def _install_signal_handlers(self) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # its terminal may be closed
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle_signal)

    def _handle_signal(self, number: int, _: FrameType | None) -> None:
        if self._is_stopping:
            os._exit(128 + number)  # second signal: exit at once. Accepted changes are durable.
        self._stop(0)

    def _give_up(self, reason: str) -> None:
        self._stop(StoreUnavailable.exit_status)

    def _stop(self, exit_code: int) -> None:
        self._is_stopping = True
        self._exit_code = exit_code
        self._store.stop_waiting()
        if self._server is not None:
            self._server.app.state.end()
            self._server.should_exit = True


# Addresses for all interfaces, and the loopback address that reaches the daemon then.
_WILDCARD_ADDRESSES = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}  # noqa: S104 (when asked for)


def _listen(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        listening = socket.create_server(
            (address, port),
            family=family,
            backlog=BACKLOG,
            dualstack_ipv6=address == "::" and socket.has_dualstack_ipv6(),
        )
        # Inherited by connections. A response is two packets; with Nagle's algorithm the second one
        # would wait 40 ms.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        if port and error.errno == errno.EADDRINUSE:
            version = probe_version(_WILDCARD_ADDRESSES.get(address, address), port)
            user = f"another Corral daemon (version {version})" if version else "another program"
            advice = "Stop it with `corral down` in its home, or choose" if version else "Choose"
            raise Refused(
                f"Port {port} is used by {user}. {advice} another port with --port; "
                "--port 0 takes any free port.",
                port=port,
                version=version,
            ) from None
        raise Invalid(
            f"Cannot listen on {address}:{port}: {os.strerror(error.errno or 0)}. Choose another "
            "--bind or --port.",
            address=address,
            port=port,
        ) from None
    except OverflowError:
        raise Invalid(f"Invalid port {port}: it must be from 1 to 65535.", port=port) from None


def _report_start(descriptor: int | None, report: dict[str, Any]) -> None:
    """Report the result of the start to the parent process, or print the link for a person."""
    if descriptor is None:
        if "link" in report:
            sys.stderr.write(f"Corral is up: {report['link']}\n")
        return
    try:
        with os.fdopen(descriptor, "wb") as pipe:
            pipe.write(msgspec.json.encode(report) + b"\n")
    except OSError:
        pass  # the parent process has exited


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="corral.serve", description=__doc__)
    parser.add_argument("--port", type=int, default=DEFAULT_PORT)
    parser.add_argument("--bind", default="127.0.0.1")
    parser.add_argument("--allow-host", action="append", default=[])
    parser.add_argument("--slots", type=int)
    parser.add_argument("--label", action="append", default=[])
    parser.add_argument("--log")
    parser.add_argument("--ready", type=int)
    return parser.parse_args(arguments)


class RedactingFormatter(logging.Formatter):
    """Removes secrets from log lines and tracebacks; once the store is open, also known values."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self.clean = Redaction().clean

    def format(self, record: logging.LogRecord) -> str:
        return self.clean(super().format(record))


def _configure_logging(path: str | None, formatter: RedactingFormatter) -> None:
    handler: logging.Handler = logging.StreamHandler()
    if path is not None:
        handler = logging.handlers.RotatingFileHandler(path, maxBytes=MAX_LOG_BYTES, backupCount=1)
    handler.setFormatter(formatter)
    # Uncaught exceptions of all threads go to the log, too.
    sys.excepthook = lambda *error: log.critical("uncaught exception", exc_info=error)
    threading.excepthook = lambda args: log.error(
        "uncaught exception in a thread", exc_info=args.exc_value
    )
    logging.raiseExceptions = False  # on a full disk, logging the error would fail again
    root = logging.getLogger()
    root.addHandler(handler)
    log.setLevel(logging.INFO)
    root.setLevel(logging.WARNING)


def _raise_file_limit() -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < MAX_OPEN_FILES:
        limit = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def main(arguments: list[str] | None = None) -> int:
    options = _options(sys.argv[1:] if arguments is None else arguments)
    os.umask(0o077)
    process_marks.leave_run()  # a process of a run may have started this daemon
    config.make_private_folder(config.home())
    formatter = RedactingFormatter()
    _configure_logging(options.log, formatter)
    _raise_file_limit()
    try:
        with open_service(None, actor="daemon") as store:
            formatter.clean = store.clean
            return DaemonServer(options, store).run()
    except CorralError as error:
        log.error("%s", error.message)
        details = {"code": error.code, "message": error.message, "details": error.details}
        _report_start(options.ready, {"error": details})
        return error.exit_status


if __name__ == "__main__":
    sys.exit(main())
