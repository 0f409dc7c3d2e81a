"""The command line: one noun, one file; commands are loaded when they are called."""
