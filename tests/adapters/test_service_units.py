"""The systemd unit of the daemon: content, installation and removal. No service is started."""

import os
import plistlib
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from corral.adapters import service_units
from corral.kernel.errors import Refused

COMMAND = ["/opt/my python/bin/python", "-m", "corral.serve", "--label", 'a"b$c%d']
ENVIRONMENT = {"CORRAL_STORE": "postgresql://u:p%40ss@h/db", "PATH": "/usr/bin:/bin"}


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake systemctl that records its arguments; returns the path of the record."""
    calls = tmp_path / "calls"
    program = tmp_path / "bin" / "systemctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return calls


def test_unit_is_written_private_enabled_and_removed(systemctl: Path) -> None:
    unit = service_units.SystemdService("-abc")
    status = unit.install(COMMAND, ENVIRONMENT)
    assert (status.installed, status.running) == (True, True)
    assert unit.path.name == "corral-abc.service"
    assert stat.S_IMODE(unit.path.stat().st_mode) == 0o600, "the unit may contain a password"
    assert systemctl.read_text().splitlines() == [
        "--user daemon-reload",
        "--user enable --now corral-abc.service",
    ]
    status = unit.uninstall()
    assert (status.installed, unit.path.exists()) == (False, False)
    assert "--user disable --now corral-abc.service" in systemctl.read_text()
    assert "not installed" in unit.uninstall().sentence


def test_without_systemd_the_next_step_is_named(systemctl: Path, tmp_path: Path) -> None:
    (tmp_path / "bin" / "systemctl").write_text("#!/bin/sh\necho no bus >&2\nexit 1\n")
    status = service_units.SystemdService("").install(COMMAND, ENVIRONMENT)
    assert (status.installed, status.running) == (True, False)
    assert "no bus" in status.sentence
    assert "systemctl --user enable --now corral.service" in status.sentence


def test_stopping_the_unit_ends_only_the_daemon() -> None:
    text = service_units.SystemdService("").text(COMMAND, ENVIRONMENT)
    assert "KillMode=process" in text
    assert '"--label" "a\\"b$$c%%d"' in text
    assert 'Environment="CORRAL_STORE=postgresql://u:p%%40ss@h/db"' in text
    agent = plistlib.loads(service_units.LaunchdService("").text(COMMAND, ENVIRONMENT).encode())
    assert agent["AbandonProcessGroup"] is True
    assert agent["ProgramArguments"] == COMMAND
    assert agent["EnvironmentVariables"] == ENVIRONMENT


def test_invalid_value_for_a_unit_is_rejected() -> None:
    with pytest.raises(Refused):
        service_units.SystemdService("").text(COMMAND, {"PATH": "a\nExecStartPre=/bin/rm"})


def test_systemd_verifies_the_unit(tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("systemd-analyze is not installed")
    path = tmp_path / "corral.service"
    command = ["/bin/sh", "-c", 'a"b$c%d']
    path.write_text(service_units.SystemdService("").text(command, ENVIRONMENT))
    result = subprocess.run(
        [verify, "verify", "--user", str(path)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)},
    )
    if "Failed to" in result.stderr and "corral.service" not in result.stderr:
        pytest.skip(f"systemd-analyze is not usable: {result.stderr.strip()}")
    assert "corral.service" not in result.stderr, result.stderr
