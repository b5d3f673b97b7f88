"""The objects that a pool owns, each a pure function of what the pool is to be."""
