"""The mappings of the tools whose databases can be imported.

To add a tool, write a module with a `ToolMapping` named `TOOL`, and name it in `registry`.
"""
