"""The architectures: each one file, its step written once in the graph's vocabulary."""
