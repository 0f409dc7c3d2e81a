"""The daemon as a service of the system: a user unit of systemd, or an agent of launchd.

Only the daemon itself is ended with its service: keepers and agents that it started go on.
"""

import os
import plistlib
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from corral import config
from corral.adapters.daemon_process import file_of
from corral.kernel.errors import Refused

KEPT = ("PATH", "HOME", "LANG", "CORRAL_HOME", "CORRAL_HOST", "VIRTUAL_ENV", "XDG_DATA_HOME")
SECONDS = 30


class Installed(msgspec.Struct, frozen=True):
    """What became of a service."""

    path: str
    installed: bool
    running: bool
    sentence: str


def kept_environment(address: str) -> dict[str, str]:
    """What the service needs of this terminal's environment to find the same store and programs."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    return kept | {"CORRAL_STORE": address, "CORRAL_HOME": str(config.home())}


def of(store: str) -> "Systemd | Launchd":
    """The kind of service that this system has, for the daemon of a store."""
    name = file_of(store, "").name.removeprefix("daemon")
    return Launchd(name) if sys.platform == "darwin" else Systemd(name)


def _write(path: Path, text: str) -> None:
    """A private file: the store's address may hold a password."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.new-{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    fresh.rename(path)


def _tried(*words: str) -> str | None:
    """Run a program of the system; why it did not do what it should, or None."""
    try:
        told = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{words[0]}: {error}"
    return None if told.returncode == 0 else (told.stderr or told.stdout).strip() or "it failed"


class Systemd:
    """A unit of the user's own systemd."""

    def __init__(self, name: str) -> None:
        self.name = f"corral{name}.service"
        base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
        self.path = Path(base) / "systemd" / "user" / self.name

    def text(self, command: Sequence[str], environment: Mapping[str, str]) -> str:
        variables = "\n".join(
            f"Environment={_quoted(f'{name}={value}')}" for name, value in environment.items()
        )
        words = " ".join(_quoted(word).replace("$", "$$") for word in command)
        return f"""\
[Unit]
Description=Corral, the supervisor for AI agents
After=network.target

[Service]
Type=exec
ExecStart={words}
{variables}
# Only the daemon: the agents that it started go on without it.
KillMode=process
TimeoutStopSec=20
Restart=on-failure
RestartSec=2

[Install]
WantedBy=default.target
"""

    def install(self, command: Sequence[str], environment: Mapping[str, str]) -> Installed:
        _write(self.path, self.text(command, environment))
        why = _tried("systemctl", "--user", "daemon-reload") or _tried(
            "systemctl", "--user", "enable", "--now", self.name
        )
        if why is not None:
            said = (
                f"{self.path} is written, and could not be started ({why}); when systemd runs for "
                f"you: systemctl --user enable --now {self.name}."
            )
            return Installed(str(self.path), True, False, said)
        said = f"{self.name} runs, and starts with your log-in (`loginctl enable-linger`: always)."
        return Installed(str(self.path), True, True, said)

    def uninstall(self) -> Installed:
        if not self.path.exists():
            return Installed(str(self.path), False, False, f"There is no {self.path}.")
        with suppress(OSError):
            _tried("systemctl", "--user", "disable", "--now", self.name)
        self.path.unlink()
        _tried("systemctl", "--user", "daemon-reload")
        return Installed(str(self.path), False, False, f"{self.path} is removed.")


def _quoted(word: str) -> str:
    """As systemd reads it: its own escapes, and % doubled."""
    if "\n" in word:
        raise Refused("A line break cannot stand in a unit; take it out of the environment.")
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


class Launchd:
    """An agent of the user's own launchd."""

    def __init__(self, name: str) -> None:
        self.name = f"corral{name}"
        self.path = Path.home() / "Library" / "LaunchAgents" / f"{self.name}.plist"

    def text(self, command: Sequence[str], environment: Mapping[str, str]) -> str:
        return plistlib.dumps(
            {
                "Label": self.name,
                "ProgramArguments": list(command),
                "EnvironmentVariables": dict(environment),
                "RunAtLoad": True,
                "KeepAlive": {"SuccessfulExit": False},
                "ExitTimeOut": 20,
                # Only the daemon: the agents that it started go on without it.
                "AbandonProcessGroup": True,
            }
        ).decode()

    def install(self, command: Sequence[str], environment: Mapping[str, str]) -> Installed:
        _write(self.path, self.text(command, environment))
        target = f"gui/{os.getuid()}"
        why = _tried("launchctl", "bootstrap", target, str(self.path))
        if why is not None:
            said = (
                f"{self.path} is written, and could not be started ({why}); try: launchctl "
                f"bootstrap {target} {shlex.quote(str(self.path))}."
            )
            return Installed(str(self.path), True, False, said)
        return Installed(str(self.path), True, True, f"{self.name} runs, and starts at log-in.")

    def uninstall(self) -> Installed:
        if not self.path.exists():
            return Installed(str(self.path), False, False, f"There is no {self.path}.")
        _tried("launchctl", "bootout", f"gui/{os.getuid()}/{self.name}")
        self.path.unlink()
        return Installed(str(self.path), False, False, f"{self.path} is removed.")
