"""The worker's HTTP face: bodies, routes, streams, the live page, and the life of the process around them."""
