"""Allocation of ports for programs of an attempt."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from corral.adapters.processes import ports
from corral.kernel.errors import Invalid, Refused
from tests.support.errors import because


def test_every_owner_keeps_its_own_ports(tmp_path: Path) -> None:
    first = ports.allocate_ports(tmp_path, "att_1", 2)
    two = ports.allocate_ports(tmp_path, "att_2", 2)
    assert len({*first, *two}) == 4
    assert ports.allocate_ports(tmp_path, "att_1", 2) == first
    assert ports.allocate_ports(tmp_path, "att_1", 3)[:2] == first
    assert ports.list_allocated(tmp_path)["att_2"] == two
    ports.release_ports(tmp_path, "att_2")
    ports.release_ports(tmp_path, "unknown")
    assert "att_2" not in ports.list_allocated(tmp_path)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_port_in_use_is_not_allocated(tmp_path: Path, family: socket.AddressFamily) -> None:
    with socket.socket(family) as server:
        server.bind(("::1" if family is socket.AF_INET6 else "127.0.0.1", 0))
        server.listen()
        busy = server.getsockname()[1]
        assert busy not in ports.allocate_ports(
            tmp_path, "a", first=busy, last=min(busy + 200, 65_535)
        )
        with pytest.raises(Refused, check=because("no_free_ports")):
            ports.allocate_ports(tmp_path, "b", first=busy, last=busy)


def test_invalid_range_is_rejected_and_damaged_file_ignored(tmp_path: Path) -> None:
    with pytest.raises(Invalid):
        ports.allocate_ports(tmp_path, "a", first=0)
    with pytest.raises(Invalid):
        ports.allocate_ports(tmp_path, "a", 0)
    (tmp_path / ports.PORTS_FILE).write_text("{nonsense")
    assert ports.list_allocated(tmp_path) == {}
    assert ports.allocate_ports(tmp_path, "a")


def test_concurrent_processes_get_different_ports(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from corral.adapters.processes import ports\n"
        "for n in range(10):\n"
        "    print(*ports.allocate_ports(Path(sys.argv[1]), f'{sys.argv[2]}-{n}', 2))"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path), str(number)], stdout=subprocess.PIPE
        )
        for number in range(4)
    ]
    allocated = [port for child in children for port in child.communicate()[0].split()]
    assert len(allocated) == len({*allocated}) == 80
