"""Real agent CLIs with an empty home and dummy keys against a model stub; a real Matrix server."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.adapters.providers import registry
from corral.adapters.providers.provider import LaunchCommand, LaunchRequest, Provider
from tests.real.home import AgentKind, RealHome
from tests.real.homeserver import Homeserver
from tests.real.machine import INSTALL_HINT, Machine, program
from tests.support.stub_model import Stub


@pytest.fixture
def stub() -> Iterator[Stub]:
    server = Stub(full=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def machine(stub: Stub) -> Iterator[Machine]:
    # Not below the folder for temporary files, where codex refuses to run.
    folder = Path(tempfile.mkdtemp(prefix="corral-real-", dir="/var/tmp")) / "m"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        yield Machine(folder, stub)
    kill_leftovers(folder)
    shutil.rmtree(folder.parent, ignore_errors=True)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Homeserver]:
    """One Matrix server for all tests; a test that stops it starts it again."""
    pytest.importorskip(
        "synapse", reason="the Matrix server is not installed: pip install '.[real]'"
    )
    result = Homeserver(tmp_path_factory.mktemp("matrix") / "server").start()
    yield result
    result.stop()


def kill_leftovers(folder: Path) -> None:
    """Kill processes that a CLI left: those whose HOME is in the folder of this test."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            belongs = f"HOME={folder}/home".encode() in (entry / "environ").read_bytes().split(
                b"\0"
            )
            if belongs and int(entry.name) != os.getpid():
                os.kill(int(entry.name), 9)
        except (OSError, ValueError):
            continue


class Agent:
    """One provider with its real program."""

    def __init__(self, name: str) -> None:
        result = program(name)
        if result is None:
            pytest.skip(f"{name} is not installed: {INSTALL_HINT}")
        self.program = result
        self.provider: Provider = registry.get_provider(name)

    def build_command(self, ask: LaunchRequest) -> LaunchCommand:
        return self.provider.build_command(ask, self.program)


@pytest.fixture
def claude() -> Agent:
    return Agent("claude")


@pytest.fixture
def codex() -> Agent:
    return Agent("codex")


@pytest.fixture
def home(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealHome]:
    """A private store, whose runs all end with the test."""
    corral_home = machine.home.parent / "corral"
    monkeypatch.setenv("CORRAL_HOME", str(corral_home))
    home = RealHome(machine, corral_home)
    try:
        yield home
    finally:
        for gate in home.stub.gates.values():
            gate.set()
        home.kill_processes()


@pytest.fixture(params=["claude", "codex"])
def kind(request: pytest.FixtureRequest, home: RealHome) -> AgentKind:
    """Each agent CLI in turn."""
    home.install(request.param)
    return AgentKind(request.param, home)
