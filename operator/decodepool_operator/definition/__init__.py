"""The CustomResourceDefinition and its page, written by `make golden`.

| | |
|---|---|
| `crd` | the definition, from the models that also read manifests |
| `page` | docs/crd.md |
| `structural` | a JSON schema as Kubernetes takes it |
"""
