"""Imports of data from other tools: their databases, and transcripts of agent CLIs.

The import of a database, step by step:

    database_import     the whole import: find the files of a source, open them, start the job
    source/             read a file of another tool, which is never locked or changed
        private_copy    copy the database file
        database        open the untrusted copy, and read its tables in batches
        row             validate and convert the values of a row
        timestamps      timestamps in all usual units
    import_job          one source in one transaction: find new, changed and deleted rows
    imported_ids        the ids of the objects that imported rows refer to
    conversion          convert a row with the mapping of its table, and redact secrets
    mappings/           which of Corral's columns each column of a tool becomes
        registry        the tools, and how their databases are recognized
        types           the types of a mapping
        target_rows     rows of Corral's tables with all required columns
        <tool>          the mapping of one tool, in one or more modules
    target/             write into Corral's tables
        row_writer      store the converted rows and their origins
        inserts         insert rows into one table
        <concept>       tables that need more than an INSERT
        restoration     which objects were deleted here and are restored
    file_copies         copy the files that are attached to imported messages
    report              what was imported, changed, restored and kept, table by table

`transcript_import` imports transcripts of claude and codex.

An import is idempotent: the table `import_origins` (`domain/imports/origins.py`) has the key and a
hash of every imported row, so a second import adds only new rows. A value that is invalid, or has
no place in Corral, is kept unchanged in `import_origins.unmapped` and reported. Nothing that is
imported is live. docs/reference/imports.md is generated from the mappings.
"""
