"""One decode worker: weights, model graphs, the exact step, sessions, and their HTTP API."""
