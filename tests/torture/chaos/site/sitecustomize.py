"""Shift the clock of a test process by the number of milliseconds in a file.

Python imports this module first if PYTHONPATH names its folder. The product does not know of it.
"""

import mmap
import os
import struct
import time

_path = os.environ.get("CHAOS_CLOCK")
if _path is not None:
    with open(_path, "rb") as _file:
        _moved = mmap.mmap(_file.fileno(), 8, prot=mmap.PROT_READ)
    _really = time.time_ns

    def _time_ns() -> int:
        (ms,) = struct.unpack("<q", _moved[:8])
        return _really() + int(ms) * 1_000_000

    def _time() -> float:
        return _time_ns() / 1e9

    time.time_ns = _time_ns
    time.time = _time
