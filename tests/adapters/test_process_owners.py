"""Lease owner names: they identify a process and show whether it is dead."""

import subprocess
import sys

import pytest

from corral.adapters.processes import process
from corral.adapters.processes.process import ProcessIdentity


@pytest.mark.parametrize(
    "identity",
    [
        ProcessIdentity("host", "boot", 7, "123"),
        ProcessIdentity("host/4026", "{ sec = 1 } Wed 10:00:00", 7, "Wed Nov 18 14:43:43"),
        ProcessIdentity("a:b%3Ac%", "", 7, ""),
    ],
)
@pytest.mark.parametrize("instance", [None, 3])
def test_parse_owner_reverses_as_owner(identity: ProcessIdentity, instance: int | None) -> None:
    assert process.parse_owner(identity.as_owner("driver", instance)) == identity


@pytest.mark.parametrize(
    "owner", [None, "", "me", "supervisor:1", "daemon:host:x:1:boot", "a:b:1:2:3:4:5"]
)
def test_other_owners_are_not_processes(owner: str | None) -> None:
    assert process.parse_owner(owner) is None
    assert not process.is_dead(owner)


def test_only_a_dead_local_process_is_dead() -> None:
    me = process.identify_self()
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert not process.is_dead(me.as_owner("daemon"))
    assert not process.is_dead(me._replace(host="elsewhere").as_owner("daemon"))
    assert process.is_dead(me._replace(start_token="1").as_owner("daemon"))
    assert process.is_dead(me._replace(boot_id="earlier").as_owner("daemon"))
    assert process.is_dead(me._replace(pid=child.pid).as_owner("daemon"))
