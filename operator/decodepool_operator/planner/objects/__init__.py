"""The objects that a pool owns, each a pure function of what the pool is to be.

| | |
|---|---|
| `worker`, `gateway`, `reader_job` | what runs |
| `model_files` | how the model's file comes into a pod |
| `access`, `network` | who the pods are to the API server; how the pool is reached, and by whom |
| `common` | whose they are, and what a container may do |
"""
