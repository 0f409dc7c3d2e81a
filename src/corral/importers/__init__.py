"""Imports of data from other tools: their databases, and transcripts of agent CLIs.

How the import of a database works:

1. `workflow` finds the database files of the source; `source.copy` copies each one, so that the
   source is never locked or changed, and `source.database` opens the untrusted copy.
2. `tools` checks by its tables that the file belongs to the named tool, and loads the mapping of
   the tool (`mappings`): which of Corral's columns each of its columns becomes.
3. `database_import` reads the tables in batches, in one transaction. It skips rows that an earlier
   import stored: the table `import_origins` has the key and a hash of every imported row.
4. A mapping converts each row (`source.row`) to rows of Corral's tables (`factories`). A value that
   is invalid, or has no place in Corral, is kept unchanged in `import_origins.unmapped` and
   reported.
5. `storage` inserts the rows, with `rows` for tables that need more than an INSERT.
6. `report` counts what was imported, changed, restored and kept, table by table.

Nothing that is imported is live. A second import adds new rows, and `restoration` restores objects
that were deleted here. `transcripts` imports transcripts of claude and codex.
docs/reference/imports.md is generated from the mappings.
"""
