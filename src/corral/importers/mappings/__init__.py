"""The mapping of each tool: from its tables and columns to those of Corral."""
