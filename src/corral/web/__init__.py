"""The dashboard: pages made on the server, kept current by the feed of events.

`pages.py` is the table of pages; each group of pages is a file. A page reads by the library and
writes by `actions.py`; it knows no SQL and no other interface.
"""
