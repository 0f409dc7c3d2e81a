"""What agents call: a small table of tools, by the Model Context Protocol, on stdio and HTTP."""
