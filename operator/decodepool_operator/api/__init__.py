"""The API server.

| | |
|---|---|
| `kinds` | what it serves that an operator has to do with |
| `client` | calls to it |
| `faults` | what its refusals mean |
"""
