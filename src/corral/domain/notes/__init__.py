"""Notes: the memory of an agent, of a project or of everyone."""
