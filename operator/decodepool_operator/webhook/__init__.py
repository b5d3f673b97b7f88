"""The admission webhook that puts a decode worker beside an application.

| | |
|---|---|
| `injection` | a pod with its worker, as a pure function of the pod and its pool |
| `server` | admission reviews in, patches out |
| `certificates`, `keeper` | the certificates, and keeping them trusted |
"""
