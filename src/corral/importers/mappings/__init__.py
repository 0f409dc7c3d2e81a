"""The mappings of each tool: what its tables and columns become in Corral."""
