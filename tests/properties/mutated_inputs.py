"""Mutated samples of valid input, for tests of parsers.

A mutation of a valid sample reaches more code than random bytes. A test runs a few examples;
`CORRAL_FUZZ=2000 pytest tests/properties` runs many.
"""

import json
import os
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("CORRAL_FUZZ", "15"))

few = settings(
    max_examples=EXAMPLES,
    deadline=None,  # a slow machine is not a failure; the test's own timeout ends a hang
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    database=None,
)
many = settings(few, max_examples=EXAMPLES * 4)

NOISE: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from(["", "\0", "\ud800", "²", "-1", "1e999", "x" * 5_000]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)


def list_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value inside a JSON value, as keys and indexes."""
    yield path
    inner = value.items() if isinstance(value, dict) else ()
    for key, item in enumerate(value) if isinstance(value, list) else inner:
        yield from list_paths(item, (*path, key))


@st.composite
def mutated(draw: Any, *samples: Any) -> Any:
    """Draw one of the samples and replace or delete one to three of its values."""
    value = deepcopy(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, 3))):
        *path, last = (None, *draw(st.sampled_from([*list_paths(value)])))
        if not path:
            return draw(NOISE)
        parent = value
        for key in path[1:]:
            parent = parent[key]
        if draw(st.booleans()) and isinstance(parent, dict):
            del parent[last]
        else:
            parent[last] = draw(NOISE)
    return value


def encode_json(value: Any) -> bytes:
    return json.dumps(value).encode()
