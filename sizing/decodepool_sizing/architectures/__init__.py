"""What is an architecture's own: one file each, one row each in `registry.ARCHITECTURES`."""
