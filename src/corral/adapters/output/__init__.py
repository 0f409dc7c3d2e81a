"""The output of a run: redact, cap, seal, read and render it. Works on files, without a store.

redact, secret_patterns     replace secrets in a byte stream
capped_file                 append to a file, and cut its middle above a size limit
seal, sealed_format         compress a finished file into a seekable one
reader, plain_file,         read an output in either form
sealed_file, lines
render, screen, escapes     show an output as text
"""
