"""Rows of whole tables, from one store into another."""

from collections.abc import Iterable
from itertools import islice

from corral.db.schema import TableDoc
from corral.db.statement import Row, Statement
from corral.db.tx import Tx
from corral.db.write_fence import content

BATCH = 1_000


def pour(tx: Tx, table: TableDoc, rows: Iterable[Row]) -> None:
    """Add rows with all their columns, as they are."""
    names = table.names
    values = ", ".join(f":{name}" for name in names)
    insert = Statement(f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({values})")
    left = iter(rows)
    while batch := [dict(zip(names, row, strict=True)) for row in islice(left, BATCH)]:
        tx.execute_each(insert, batch)


def raise_sequences(tx: Tx) -> None:
    """Let numbers go on behind those that are there; on SQLite they do by themselves."""
    if tx.engine == "sqlite":
        return
    for table in content():
        if table.is_numbered:
            sequence = f"CAST(pg_get_serial_sequence('{table.name}', 'seq') AS REGCLASS)"
            tx.run(
                Statement(f"""
                    SELECT setval({sequence}, greatest(
                        (SELECT max(seq) FROM {table.name}), pg_sequence_last_value({sequence}), 1
                    ))
                """)
            )
