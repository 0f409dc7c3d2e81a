"""The daemon's process: `python -m corral.serve`, as `corral up` starts it.

It opens the store, takes its place among the nodes after a look at what was left behind, runs the
loops, and serves the API and the pages until it is told to end. It keeps no agent: each run has a
keeper of its own, which goes on whatever happens here.
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
from corral.adapters import process, run_marks
from corral.adapters.daemon_process import PORT, Daemon, Seat, file_of, version_at
from corral.adapters.redaction import Redaction
from corral.api import Corral, open_service
from corral.daemon.host import Host
from corral.http.app import LOCAL, create_app
from corral.http.connections import server_options
from corral.kernel.errors import CorralError, Invalid, Refused
from corral.mcp.http import routes as tool_routes
from corral.web.pages import error_page
from corral.web.pages import routes as page_routes

GRACE = 10.0  # seconds for what is being done when the daemon is told to end
LAST_ANSWERS = 2  # seconds of these for requests that are being answered
BACKLOG = 1_024
FILES = 8_192  # descriptors: browsers that watch, and one for each keeper
LOG_BYTES = 1 << 20
EXIT_CODES = {"store_unavailable": 5, "invalid": 2}

log = logging.getLogger("corral")


class Server(uvicorn.Server):
    """Serves until it is told to end; the signals are the daemon's own matter."""

    def __init__(self, app: Starlette, started: Callable[[], None]) -> None:
        self.app = app
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="on",
                server_header=False,
                timeout_graceful_shutdown=LAST_ANSWERS,
                **server_options(),
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


class Serving:
    """One life of the daemon."""

    def __init__(self, options: argparse.Namespace, store: Corral) -> None:
        self._options = options
        self._store = store
        self._server: Server | None = None
        self._ending = False
        self._exit_code = 0

    def run(self) -> int:
        """Serve until told to end; gives back the exit code."""
        options, store = self._options, self._store
        seat = Seat(store.db.url)
        try:
            with _listen(options.bind, options.port) as listening:
                host = Host(store, slots=options.slots, labels=options.label, give_up=self._give_up)
                me = self._describe(listening)
                found = host.begin()
                try:
                    app = create_app(
                        store,
                        pages=[*tool_routes(), *page_routes(host.status)],
                        error_page=error_page,
                        status=host.status,
                        allowed_hosts=self._names(),
                    )

                    def started() -> None:
                        seat.tell(me)
                        log.info("serving %s at %s", store.db.url, me.url)
                        _answer(options.ready, {"daemon": me, "link": me.link, "found": found})

                    self._server = Server(app, started)
                    self._obey_signals()
                    asyncio.run(self._server.serve([listening]))
                finally:
                    if not host.end(GRACE - LAST_ANSWERS):
                        log.warning("a loop did not end in time; what it did goes on elsewhere")
        finally:
            seat.leave()
        log.info("ended")
        return self._exit_code

    def _describe(self, listening: socket.socket) -> Daemon:
        store = self._store
        port = int(listening.getsockname()[1])
        shown = _EVERYWHERE.get(self._options.bind, self._options.bind)
        token_file = file_of(store.db.url, ".token")
        home = sha256(f"{process.host()} {token_file}".encode()).hexdigest()[:12]
        store.tokens.in_file(token_file, name=f"home-{home}")
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
            pid_space=process.pid_space(),
        )

    def _names(self) -> set[str]:
        """The names by which it may be called: others would be a page that was led here."""
        names = {*LOCAL, *self._options.allow_host}
        return names | {
            socket.gethostname() if self._options.bind in _EVERYWHERE else self._options.bind
        }

    # -- ending --------------------------------------------------------------------------------

    def _obey_signals(self) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the terminal it came from may close
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._told_to_end)

    def _told_to_end(self, number: int, _: FrameType | None) -> None:
        if self._ending:
            os._exit(128 + number)  # asked twice: at once. Nothing that was accepted is lost.
        self._end(0)

    def _give_up(self, reason: str) -> None:
        self._end(EXIT_CODES["store_unavailable"])

    def _end(self, exit_code: int) -> None:
        self._ending = True
        self._exit_code = exit_code
        self._store.hurry()
        if self._server is not None:
            self._server.app.state.end()
            self._server.should_exit = True


# Addresses that mean all of them, and the one by which this machine calls itself then.
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}  # noqa: S104 (when asked for)


def _listen(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        listening = socket.create_server(
            (address, port),
            family=family,
            backlog=BACKLOG,
            dualstack_ipv6=address == "::" and socket.has_dualstack_ipv6(),
        )
        # Connections inherit it: an answer is two packets, and the second must not wait 40 ms.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        if port and error.errno == errno.EADDRINUSE:
            version = version_at(_EVERYWHERE.get(address, address), port)
            user = f"another Corral daemon (version {version})" if version else "another program"
            what = "Stop it with `corral down` in its home, or choose" if version else "Choose"
            raise Refused(
                f"Port {port} is used by {user}. {what} another port with --port; "
                "--port 0 takes any free port.",
                port=port,
                version=version,
            ) from None
        raise Invalid(
            f"It cannot listen at {address}:{port} ({os.strerror(error.errno or 0)}); give another "
            "--bind or "
            "--port.",
            address=address,
            port=port,
        ) from None
    except OverflowError:
        raise Invalid(f"{port} is no port; give one from 1 to 65535.", port=port) from None


def _answer(descriptor: int | None, said: dict[str, Any]) -> None:
    """Tell whoever started this daemon how it began; a person in front of it reads the link."""
    if descriptor is None:
        if "link" in said:
            sys.stderr.write(f"Corral is up: {said['link']}\n")
        return
    try:
        with os.fdopen(descriptor, "wb") as pipe:
            pipe.write(msgspec.json.encode(said) + b"\n")
    except OSError:
        pass  # nobody waits any more


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="corral.serve", description=__doc__)
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--bind", default="127.0.0.1")
    parser.add_argument("--allow-host", action="append", default=[])
    parser.add_argument("--slots", type=int)
    parser.add_argument("--label", action="append", default=[])
    parser.add_argument("--log")
    parser.add_argument("--ready", type=int)
    return parser.parse_args(arguments)


class Clean(logging.Formatter):
    """Lines of the log, tracebacks among them, without secrets; those that the store's process has
    come to know too, once it is open."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self.clean = Redaction().clean

    def format(self, record: logging.LogRecord) -> str:
        return self.clean(super().format(record))


def _begin_log(path: str | None, clean: Clean) -> None:
    handler: logging.Handler = logging.StreamHandler()
    if path is not None:
        handler = logging.handlers.RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=1)
    handler.setFormatter(clean)
    # What nobody caught is a line of the log like any other, on whichever thread it was.
    sys.excepthook = lambda *error: log.critical("ended by a mistake", exc_info=error)
    threading.excepthook = lambda what: log.error(
        "a thread ended by a mistake", exc_info=what.exc_value
    )
    logging.raiseExceptions = False  # a full disk must not be told to the full disk
    root = logging.getLogger()
    root.addHandler(handler)
    log.setLevel(logging.INFO)
    root.setLevel(logging.WARNING)


def _allow_many_files() -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < FILES:
        wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main(arguments: list[str] | None = None) -> int:
    options = _options(sys.argv[1:] if arguments is None else arguments)
    os.umask(0o077)
    run_marks.leave_run()  # a process of a run may have started it
    config.make_private_folder(config.home())
    clean = Clean()
    _begin_log(options.log, clean)
    _allow_many_files()
    try:
        with open_service(None, actor="daemon") as store:
            clean.clean = store.clean
            return Serving(options, store).run()
    except CorralError as error:
        log.error("%s", error.message)
        said = {"code": error.code, "message": error.message, "details": error.details}
        _answer(options.ready, {"error": said})
        return EXIT_CODES.get(error.code, 4)


if __name__ == "__main__":
    sys.exit(main())
