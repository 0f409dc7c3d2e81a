"""The locks that can overlap a path, read by index ranges."""

from functools import lru_cache
from typing import Any

from corral.db.tx import Tx
from corral.domain.locks import sql
from corral.domain.locks.model import Lock
from corral.kernel.path_patterns import get_literal_prefix, list_ancestor_prefixes
from corral.kernel.validation import encode_json

HIGHEST_KEY = "\U0010ffff"
"""Sorts after every path."""


def list_candidates(tx: Tx, project_id: str, path: str) -> list[Lock]:
    """List the locks that can overlap a pattern, including expired ones."""
    return tx.all(sql.CANDIDATES, project_id=project_id, **_index_bounds(path))


@lru_cache(1_024)
def _index_bounds(path: str) -> dict[str, Any]:
    path_prefix = get_literal_prefix(path)
    return {
        "prefixes": encode_json(list_ancestor_prefixes(path_prefix), "The path"),
        "low": path_prefix,
        "high": f"{path_prefix[:-1]}0" if path_prefix else HIGHEST_KEY,  # "0" follows "/" in ASCII
    }
