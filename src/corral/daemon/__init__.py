"""Background loops of the daemon, one per module.

A loop decides when work is done, never how: it calls operations of the API. `loop.py` runs one loop
in a thread, and `loop_manager.py` runs all loops of a machine and their leadership.
"""
