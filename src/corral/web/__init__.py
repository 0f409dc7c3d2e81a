"""The dashboard: pages rendered on the server and updated live from the event feed.

`pages.py` is the table of routes; each group of pages is a module. A page reads through the library
and writes through `actions.py`. It contains no SQL and imports no other face.
"""
