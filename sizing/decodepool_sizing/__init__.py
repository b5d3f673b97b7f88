"""From a GGUF header to a model shape, and from the shape to a capacity plan. Pure: no arrays, no sockets, no
cluster.
"""
