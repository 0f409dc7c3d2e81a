"""Install the daemon as a user service of systemd or launchd.

Stopping the service stops only the daemon: supervisors and agents that it started continue.
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
from corral.adapters.daemon_process import info_path
from corral.kernel.errors import Refused

KEPT_VARIABLES = (
    "PATH",
    "HOME",
    "LANG",
    "CORRAL_HOME",
    "CORRAL_HOST",
    "VIRTUAL_ENV",
    "XDG_DATA_HOME",
)
COMMAND_TIMEOUT = 30


class ServiceResult(msgspec.Struct, frozen=True):
    """The result of installing or removing a service."""

    path: str
    installed: bool
    running: bool
    sentence: str


def service_environment(address: str) -> dict[str, str]:
    """Return the variables that the service needs to find the same store and programs."""
    variables = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return variables | {"CORRAL_STORE": address, "CORRAL_HOME": str(config.home())}


def service_for(store: str) -> "SystemdService | LaunchdService":
    """Return the service of a store's daemon, for this operating system."""
    name = info_path(store, "").name.removeprefix("daemon")
    return LaunchdService(name) if sys.platform == "darwin" else SystemdService(name)


def _write(path: Path, text: str) -> None:
    """Write a private file atomically: the address of the store may contain a password."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.new-{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    fresh.rename(path)


def _run(*args: str) -> str | None:
    """Run a program of the system; return the error, or None on success."""
    try:
        result = subprocess.run(
            args, capture_output=True, text=True, timeout=COMMAND_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{args[0]}: {error}"
    return None if result.returncode == 0 else (result.stderr or result.stdout).strip() or "failed"


class SystemdService:
    """A user unit of systemd."""

    def __init__(self, name: str) -> None:
        self.name = f"corral{name}.service"
        base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
        self.path = Path(base) / "systemd" / "user" / self.name

    def text(self, command: Sequence[str], environment: Mapping[str, str]) -> str:
        variables = "\n".join(
            f"Environment={_quote(f'{name}={value}')}" for name, value in environment.items()
        )
        args = " ".join(_quote(arg).replace("$", "$$") for arg in command)
        return f"""\
[Unit]
Description=Corral, the supervisor for AI agents
After=network.target

[Service]
Type=exec
ExecStart={args}
{variables}
# Stop only the daemon: the agents that it started continue.
KillMode=process
TimeoutStopSec=20
Restart=on-failure
RestartSec=2

[Install]
WantedBy=default.target
"""

    def install(self, command: Sequence[str], environment: Mapping[str, str]) -> ServiceResult:
        _write(self.path, self.text(command, environment))
        error = _run("systemctl", "--user", "daemon-reload") or _run(
            "systemctl", "--user", "enable", "--now", self.name
        )
        if error is not None:
            sentence = (
                f"Wrote {self.path}, but cannot start it: {error}. Start it with "
                f"`systemctl --user enable --now {self.name}` when systemd is running."
            )
            return ServiceResult(str(self.path), True, False, sentence)
        sentence = (
            f"{self.name} is running and starts when you log in. To start it at boot, run "
            "`loginctl enable-linger`."
        )
        return ServiceResult(str(self.path), True, True, sentence)

    def uninstall(self) -> ServiceResult:
        if not self.path.exists():
            return ServiceResult(str(self.path), False, False, f"{self.path} is not installed.")
        with suppress(OSError):
            _run("systemctl", "--user", "disable", "--now", self.name)
        self.path.unlink()
        _run("systemctl", "--user", "daemon-reload")
        return ServiceResult(str(self.path), False, False, f"Removed {self.path}.")


def _quote(text: str) -> str:
    """Quote a text for a unit file: backslash escapes, and % doubled."""
    if "\n" in text:
        raise Refused("A systemd unit cannot contain a line break. Remove it from the environment.")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


class LaunchdService:
    """A user agent of launchd."""

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
                # Stop only the daemon: the agents that it started continue.
                "AbandonProcessGroup": True,
            }
        ).decode()

    def install(self, command: Sequence[str], environment: Mapping[str, str]) -> ServiceResult:
        _write(self.path, self.text(command, environment))
        target = f"gui/{os.getuid()}"
        error = _run("launchctl", "bootstrap", target, str(self.path))
        if error is not None:
            sentence = (
                f"Wrote {self.path}, but cannot start it: {error}. Try "
                f"`launchctl bootstrap {target} {shlex.quote(str(self.path))}`."
            )
            return ServiceResult(str(self.path), True, False, sentence)
        sentence = f"{self.name} is running and starts when you log in."
        return ServiceResult(str(self.path), True, True, sentence)

    def uninstall(self) -> ServiceResult:
        if not self.path.exists():
            return ServiceResult(str(self.path), False, False, f"{self.path} is not installed.")
        _run("launchctl", "bootout", f"gui/{os.getuid()}/{self.name}")
        self.path.unlink()
        return ServiceResult(str(self.path), False, False, f"Removed {self.path}.")
