"""Texts of imported questions."""

from collections.abc import Sequence
from typing import Any

from corral.db.tx import Tx
from corral.domain.questions import sql


def set_question_texts(tx: Tx, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Set the text and the options of imported questions."""
    for row in rows:
        tx.run(sql.SET_TEXT, **row)
    return [row["id"] for row in rows]
