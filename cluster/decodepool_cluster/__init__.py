"""A real Kubernetes cluster on one Linux machine, from pinned sources: for `make cluster` and the tests."""
