"""Background loops of the daemon.

A loop decides when work is done, never how: it calls operations of the API. `loops.py` is the table
of all loops, `loop.py` runs one loop in a thread, and `loop_manager.py` runs all loops of a machine
and their leadership.
"""
