"""The operator: watches DecodePools, plans each one as a pure function of what is seen, and carries the plan out.

An arrow goes down this table only: `shell` and `webhook` know the planner and the API, and those know nothing of them.

| | |
|---|---|
| `__main__` | the program |
| `shell/` | watches, a queue of pools, and one look at a pool after another |
| `webhook/` | a worker beside an application |
| `planner/` | from what is seen to what is to be done: values in, values out |
| `api/` | the API server: what it serves, calls to it, its refusals |
| `connections` | who connects to the ports, and what strangers may hold |
| `names`, `texts`, `times` | what all of it shares |
| `reader` | what the reader Job runs, alone |
| `definition/` | the CustomResourceDefinition and its page, written by `make golden` |
"""
