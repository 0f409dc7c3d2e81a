"""Writing of imported rows into Corral's tables: the order, the inserts, and the origins."""
