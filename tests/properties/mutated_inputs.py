"""Foreign input for tests of parsers: what is right, spoilt a little, which goes deeper than noise.

A test takes a few examples of each; `CORRAL_FUZZ=2000 pytest tests/properties` takes many.
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
    deadline=None,  # a busy machine is no fault; what takes for ever is ended with its test
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


def places_in(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield here
    inner = value.items() if isinstance(value, dict) else ()
    for key, each in enumerate(value) if isinstance(value, list) else inner:
        yield from places_in(each, (*here, key))


@st.composite
def mutated(draw: Any, *samples: Any) -> Any:
    """One of the samples, with something else in one place or a few."""
    value = deepcopy(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, 3))):
        *path, last = (None, *draw(st.sampled_from([*places_in(value)])))
        if not path:
            return draw(NOISE)
        at = value
        for key in path[1:]:
            at = at[key]
        if draw(st.booleans()) and isinstance(at, dict):
            del at[last]
        else:
            at[last] = draw(NOISE)
    return value


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()
