"""Chat platforms: each kind of channel is a small file behind one contract."""
