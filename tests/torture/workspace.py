"""The workspace of a torture test: a folder, and optionally a private PostgreSQL server."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


@contextmanager
def folder_for(name: str, *, keep: bool) -> Iterator[Path]:
    """Create a folder that is removed afterwards, unless it should be kept."""
    folder = Path(tempfile.mkdtemp(prefix=f"corral-{name}-"))
    try:
        yield folder
    finally:
        if keep:
            print(f"in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def store_for(url: str | None, *, postgres: bool) -> Iterator[str | None]:
    """Return the given URL, or that of a private server; None: a file in the folder."""
    with ExitStack() as stack:
        if postgres:
            from tests.support.postgres_server import PostgresServer

            server = PostgresServer()
            stack.callback(server.close)
            url = server.new_database()
        yield url
