"""The API server, as far as this operator writes to it: apply, patch, delete. Plain objects in and out.

Every call blocks, with short timeouts: `carry_out` makes them in threads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from kubernetes import client, config

from decodepool_operator.api.faults import ApiFault, Refusal, fault_of
from decodepool_operator.api.kinds import Kind, kind_of
from decodepool_operator.names import MANAGER

Object = dict[str, Any]

APPLY = "application/apply-patch+yaml"
JSON_PATCH = "application/json-patch+json"
MERGE = "application/merge-patch+json"
TIMEOUT_SECONDS = (5.0, 30.0)
"""To connect, and for each wait for bytes: a server that went silent is an error, not a stuck operator."""

PAGE_OBJECTS = 500
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"


class Api:
    """A client of one API server. Safe to use from several threads."""

    def __init__(self, client_: client.ApiClient) -> None:
        self._client = client_

    @classmethod
    def connect(cls) -> Api:
        """Use the pod's service account, or the kubeconfig where there is none."""
        try:
            config.load_incluster_config()  # type: ignore[no-untyped-call]
        except config.ConfigException:
            config.load_kube_config()  # type: ignore[no-untyped-call]
        configuration = client.Configuration.get_default_copy()
        configuration.retries = False
        return cls(client.ApiClient(configuration))

    def get(self, kind: Kind, namespace: str | None, name: str, *, cached: bool = False) -> Object:
        """Return an object; ApiFault NOT_FOUND where there is none. `cached`: what the API server has in memory, which
        costs it little and may be milliseconds old.
        """
        return self.call("GET", kind.path(namespace, name), query=[("resourceVersion", "0")] if cached else None)

    def read(self, path: str) -> Object:
        """Return whatever a path serves, such as an OpenAPI document."""
        return self.call("GET", path)

    def apply(self, body: Object, *, force: bool = False) -> Object:
        """Server-side apply a whole object; return it as the server has it now.

        ApiFault FIELD_CONFLICT names the fields that another manager holds, unless `force` takes them.
        """
        metadata = body["metadata"]
        path = kind_of(body).path(metadata.get("namespace"), metadata["name"])
        return self.call("PATCH", path, body, content_type=APPLY, query=_apply_query(force=force))

    def merge(
        self, kind: Kind, namespace: str | None, name: str, patch: Object, subresource: str | None = None
    ) -> Object:
        """Merge a patch into an object."""
        query = [("fieldManager", MANAGER)]
        return self.call("PATCH", kind.path(namespace, name, subresource), patch, content_type=MERGE, query=query)

    def json_patch(self, kind: Kind, namespace: str | None, name: str, operations: list[Object]) -> Object:
        """Patch an object by a list of operations."""
        query = [("fieldManager", MANAGER)]
        return self.call("PATCH", kind.path(namespace, name), operations, content_type=JSON_PATCH, query=query)

    def replace(self, kind: Kind, namespace: str, name: str, body: Object, subresource: str | None = None) -> Object:
        """Replace an object, or its status. ApiFault STALE where it is no longer of the body's resource version."""
        return self.call("PUT", kind.path(namespace, name, subresource), body, query=[("fieldManager", MANAGER)])

    def create(self, body: Object) -> Object:
        """Create an object; ApiFault STALE where its name is taken."""
        path = kind_of(body).path(body["metadata"].get("namespace"))
        return self.call("POST", path, body, query=[("fieldManager", MANAGER)])

    def delete(self, kind: Kind, namespace: str | None, name: str, uid: str | None) -> None:
        """Delete an object and, in the background, what it owns. One that is gone, or is another by now, is left."""
        body: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid:
            body["preconditions"] = {"uid": uid}
        try:
            self.call("DELETE", kind.path(namespace, name), body)
        except ApiFault as fault:
            if fault.refusal not in (Refusal.NOT_FOUND, Refusal.STALE):
                raise

    def list_metadata(self, kind: Kind, namespace: str | None) -> Iterator[Object]:
        """Yield the metadata of every object of a kind that is watched, page by page."""
        query = [("limit", str(PAGE_OBJECTS))]
        if kind.selector:
            query.append(("labelSelector", kind.selector))
        token: str | None = ""
        while token is not None:
            page = self.call(
                "GET", kind.path(namespace), query=[*query, ("continue", token)] if token else query,
                accept=METADATA_ONLY,
            )  # fmt: skip
            for item in page.get("items") or ():
                yield item["metadata"]
            token = (page.get("metadata") or {}).get("continue") or None

    def try_list(self, kind: Kind, namespace: str) -> None:
        """List one object of a kind at most, to see whether that is allowed: ApiFault FORBIDDEN where it is not."""
        self.call("GET", kind.path(namespace), query=[("limit", "1")], accept=METADATA_ONLY)

    def call(
        self,
        method: str,
        path: str,
        body: Object | list[Object] | None = None,
        *,
        query: list[tuple[str, str]] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Object:
        """Make one request; return the object that answers it. ApiFault says why there is none."""
        try:
            request = self._client.param_serialize(
                method, path, query_params=query or [], body=body,
                header_params={"Accept": accept, "Content-Type": content_type}, auth_settings=["BearerToken"],
            )  # fmt: skip
            answer = self._client.call_api(*request, _request_timeout=TIMEOUT_SECONDS)
            data: bytes = answer.read()  # type: ignore[no-untyped-call]
            if not 200 <= answer.status <= 299:
                raise client.ApiException.from_response(http_resp=answer, body=data.decode(), data=None)
            found: Object = json.loads(data or b"{}")
        except Exception as error:
            raise fault_of(error) from None
        return found


def _apply_query(*, force: bool) -> list[tuple[str, str]]:
    return [("fieldManager", MANAGER), ("force", "true" if force else "false")]
