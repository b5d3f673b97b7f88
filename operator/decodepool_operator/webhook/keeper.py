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
        """Return good certificates, those in the Secret where they are; else make them, and keep them there.

        ApiFault NOT_FOUND without a Secret: the chart makes it, and this operator has no right to make any.
        """
        secret = self._read()
        known = Certificates.from_secret_data(secret.get("data") or {})
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

    def _read(self) -> Object:
        try:
            return self._api.get(SECRETS, self._place.namespace, self._place.secret)
        except ApiFault as fault:
            if fault.refusal is not Refusal.NOT_FOUND:
                raise
            message = f"there is no Secret {self._place.secret}: `helm upgrade` makes it again, empty"
            raise ApiFault(Refusal.NOT_FOUND, message) from None

    def _keep(self, secret: Object, wanted: Certificates) -> None:
        """Write the Secret. Whoever wrote it since is not overwritten: ApiFault STALE, and it is read again."""
        body = {**secret, "data": wanted.to_secret_data()}
        self._api.replace(SECRETS, self._place.namespace, self._place.secret, body)


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
