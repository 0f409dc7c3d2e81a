"""Tools for agents over the Model Context Protocol, on stdio and HTTP."""
