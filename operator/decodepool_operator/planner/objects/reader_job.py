"""The Job that reads a model's header where the file is: on a node, on a volume, in an image."""

from __future__ import annotations

from decodepool_operator.names import READER
from decodepool_operator.planner import nodes
from decodepool_operator.planner.objects.common import POD_SECURITY, SIGNALS, container, made
from decodepool_operator.planner.objects.model_files import model_files
from decodepool_operator.planner.pools import Pool, labels_of
from decodepool_operator.planner.resolution import SOURCE
from decodepool_operator.planner.state import Images, Object

RESOURCES: Object = {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "512Mi"}}


def reader_job(pool: Pool, images: Images) -> Object:
    """Return the Job. It is put where a worker would be, since a node's own disk is not every node's."""
    files = model_files(pool, images, images.operator)
    given = pool.spec.template
    command = ["python", "-m", "decodepool_operator.reader", files.path]
    reader = container("reader", images.operator, images, [], volumeMounts=list(files.mounts), resources=RESOURCES)
    del reader["args"]
    spec: Object = {
        **SIGNALS,
        "restartPolicy": "Never",
        "serviceAccountName": pool.child("worker"),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": POD_SECURITY,
        "nodeSelector": nodes.node_selector(pool),
        "tolerations": nodes.tolerations(pool),
        "affinity": nodes.worker_affinity(pool),
        "imagePullSecrets": [dict(each) for each in given.image_pull_secrets] if given else [],
        "containers": [{**reader, "command": command}],
        "volumes": list(files.volumes),
    }
    annotations = {SOURCE: pool.source}
    template = {
        "metadata": {"labels": labels_of(pool.name, READER), "annotations": annotations},
        "spec": {key: value for key, value in spec.items() if value not in ({}, [])},
    }
    job = made(pool, "batch/v1", "Job", pool.child("reader"), READER, spec={"backoffLimit": 0, "template": template})
    job["metadata"]["annotations"] = annotations
    return job
