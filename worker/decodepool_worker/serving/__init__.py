"""The worker's HTTP face: bodies, routes, streams, the live page, and the life of the process around them.

What it has in common with a gateway as an HTTP server is `decodepool_web`.
"""
