"""Transcripts: readers of the files in which agent CLIs record their conversations.

A reader is a module with the functions of `reader.TranscriptReader`. It only reads: the CLI may be
writing the file at the same time. `reader` has the protocol and shared helpers; each other module
reads the format of one CLI. `omissions` counts what a reader skips, for the import report.

To add a reader, create a module named after the provider and add the name to
`reader.READABLE_PROVIDERS`. Usage must have the same keys or counters as the usage in the stream of
the provider, so that a conversation which Corral ran is not charged twice.
"""
