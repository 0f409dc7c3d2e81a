"""Where a torture takes place: a folder of its own, and perhaps a PostgreSQL of its own."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


@contextmanager
def folder_for(what: str, *, keep: bool) -> Iterator[Path]:
    """A folder that is gone afterwards, unless somebody wants to look at it."""
    folder = Path(tempfile.mkdtemp(prefix=f"corral-{what}-"))
    try:
        yield folder
    finally:
        if keep:
            print(f"in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def store_for(url: str | None, *, postgres: bool) -> Iterator[str | None]:
    """The URL that was given, or one of a server that ends with it; None: a file in the folder."""
    with ExitStack() as stack:
        if postgres:
            from tests.support.postgres_server import PostgresServer

            server = PostgresServer()
            stack.callback(server.close)
            url = server.new_database()
        yield url
