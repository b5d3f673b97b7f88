"""A real Kubernetes cluster on one Linux machine, from pinned sources: `make cluster` and the tests run on it."""
