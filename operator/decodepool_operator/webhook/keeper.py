"""Keeping the webhook trusted: its certificates and path in a Secret, authority and path in the webhook's
configuration.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import datetime

from decodepool_operator.api.client import Api, Object
from decodepool_operator.api.faults import ApiFault, Refusal
from decodepool_operator.api.kinds import MUTATING_WEBHOOKS, SECRETS
from decodepool_operator.webhook.certificates import Certificates, renewed


@dataclass(frozen=True)
class Place:
    """Where the webhook's certificates are kept, and the configuration that has to trust them."""

    namespace: str
    secret: str
    configuration: str


class Keeper:
    """Reads and writes what makes the webhook trusted. Its methods block; ApiFault where the API refuses."""

    def __init__(self, api: Api, place: Place, host: str) -> None:
        self._api = api
        self._place = place
        self._host = host

    def certificates(self, now: datetime) -> Certificates:
        """Return good certificates, those in the Secret where they are; else make them, and keep them there."""
        secret = self._read()
        known = Certificates.from_secret_data(secret.get("data") or {}) if secret else None
        wanted = renewed(known, self._host, now)
        if wanted != known:
            self._keep(secret, wanted)
        return wanted

    def trust(self, certificates: Certificates) -> bool:
        """Have the API server trust the authority and ask at the path; return whether that had to be written. Nothing
        where the chart installed no webhook.
        """
        try:
            configuration = self._api.get(MUTATING_WEBHOOKS, None, self._place.configuration)
        except ApiFault as fault:
            if fault.refusal is Refusal.NOT_FOUND:
                return False
            raise
        changes = trusting(configuration, certificates)
        if changes:
            self._api.json_patch(MUTATING_WEBHOOKS, None, self._place.configuration, changes)
        return bool(changes)

    def _read(self) -> Object | None:
        try:
            return self._api.get(SECRETS, self._place.namespace, self._place.secret)
        except ApiFault as fault:
            if fault.refusal is Refusal.NOT_FOUND:
                return None
            raise

    def _keep(self, secret: Object | None, wanted: Certificates) -> None:
        """Write the Secret. Whoever wrote it since is not overwritten: ApiFault STALE, and it is read again.

        One that was deleted is applied, not posted: the right to create is for this one name, and a post has none yet
        when its right is looked at.
        """
        data = wanted.to_secret_data()
        if secret is None:
            metadata = {"name": self._place.secret, "namespace": self._place.namespace}
            made = {"apiVersion": SECRETS.api_version, "kind": SECRETS.name, "metadata": metadata, "data": data}
            self._api.apply(made)
        else:
            self._api.replace(SECRETS, self._place.namespace, self._place.secret, {**secret, "data": data})


def trusting(configuration: Object, certificates: Certificates) -> list[Object]:
    """Return the JSON patch that puts authority and path into every webhook that has others."""
    bundle, path = base64.b64encode(certificates.authority).decode(), certificates.path.decode()
    patch: list[Object] = []
    for index, webhook in enumerate(configuration.get("webhooks") or ()):
        client, root = webhook.get("clientConfig", {}), f"/webhooks/{index}/clientConfig"
        if client.get("caBundle") != bundle:
            patch.append({"op": "add", "path": f"{root}/caBundle", "value": bundle})
        if "service" in client and client["service"].get("path") != path:
            patch.append({"op": "add", "path": f"{root}/service/path", "value": path})
    return patch
