"""Building blocks that every other layer uses: ids, states, leases, errors, pagination, the clock.

Nothing here knows SQL or a database engine.
"""
