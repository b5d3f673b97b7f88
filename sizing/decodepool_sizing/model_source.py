"""Where a pool's model comes from, and the volume that keeps it."""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv6Address
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from decodepool_sizing.spec_fields import (
    ABSOLUTE_PATH_PATTERN,
    RELATIVE_PATH_PATTERN,
    SUBDOMAIN_PATTERN,
    Part,
    Quantity,
    matches,
    rule,
    rules,
)

_USER = r"[-._~%!$&()*+,;=:A-Za-z0-9]*@"
_HOST = r"[-._A-Za-z0-9]+|\[[0-9a-fA-F:]*:[0-9a-fA-F:]*\]"
_PORT = r":([0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
URL_PATTERN = rf"^https?://({_USER})?({_HOST})({_PORT})?([/?#]\S*)?$"
"""What every reader of URLs can take apart: a host in ASCII or an IPv6 address in brackets, a port up to 65535."""
_IN_BRACKETS = rf"^https?://({_USER})?\["
URL_RULES = rules(
    matches(URL_PATTERN, "must be an http:// or https:// URL without spaces, its port at most 65535"),
    rule(
        f"!self.matches(r'{_IN_BRACKETS}') || isIP(self.substring(self.indexOf('[') + 1, self.indexOf(']')))",
        "what is in brackets must be an IPv6 address",
    ),
)
SHA256_PATTERN = r"^[0-9a-f]{64}$"
KEY_PATTERN = r"^[-._a-zA-Z0-9]+$"
NO_DOTS = rule("!self.split('/').exists(part, part == '..')", "'..' has no place in it")
OBJECT_NAME = rules(matches(SUBDOMAIN_PATTERN, "must be a name of lower case letters, digits, '-' and '.'"))


def _inside(path: str) -> str:
    if ".." in path.split("/"):
        raise ValueError("'..' has no place in it")
    return path


def _with_an_address(url: str) -> str:
    if re.match(_IN_BRACKETS, url):
        try:
            IPv6Address(url[url.index("[") + 1 : url.index("]")])
        except AddressValueError:
            raise ValueError("what is in brackets must be an IPv6 address") from None
    return url


URL = Annotated[
    str, Field(pattern=URL_PATTERN, max_length=2048, json_schema_extra=URL_RULES), AfterValidator(_with_an_address)
]
AbsolutePath = Annotated[
    str,
    Field(
        pattern=ABSOLUTE_PATH_PATTERN,
        max_length=1024,
        json_schema_extra=rules(
            matches(ABSOLUTE_PATH_PATTERN, "must be an absolute path, such as /models/llama.gguf"), NO_DOTS
        ),
    ),
    AfterValidator(_inside),
]
RelativePath = Annotated[
    str,
    Field(
        pattern=RELATIVE_PATH_PATTERN,
        max_length=1024,
        json_schema_extra=rules(
            matches(RELATIVE_PATH_PATTERN, "must be a path within the volume, such as models/llama.gguf"), NO_DOTS
        ),
    ),
    AfterValidator(_inside),
]


class SecretRef(Part):
    """A key of a Secret in the pool's namespace."""

    name: str = Field(
        pattern=SUBDOMAIN_PATTERN, max_length=253, description="Name of the Secret.", json_schema_extra=OBJECT_NAME
    )
    key: str = Field(
        default="token",
        pattern=KEY_PATTERN,
        max_length=253,
        description="Key in the Secret.",
        json_schema_extra=rules(matches(KEY_PATTERN, "must be a key of letters, digits, '-', '_' and '.'")),
    )


class HTTPSource(Part):
    """A model behind a URL whose server answers ranged requests."""

    url: URL = Field(description="Where the GGUF file is.")
    sha256: str | None = Field(
        default=None,
        pattern=SHA256_PATTERN,
        max_length=64,
        description="Digest the file must have.",
        json_schema_extra=rules(matches(SHA256_PATTERN, "must be 64 digits of lower case hexadecimal")),
    )
    secret_ref: SecretRef | None = Field(default=None, description="Bearer token to send to the URL's own host.")


class PVCSource(Part):
    """A model on a volume in the pool's namespace."""

    claim_name: str = Field(
        pattern=SUBDOMAIN_PATTERN, max_length=253, description="Name of the claim.", json_schema_extra=OBJECT_NAME
    )
    path: RelativePath = Field(description="Path of the file on the volume.")


class ImageSource(Part):
    """A model inside a container image."""

    reference: str = Field(
        pattern=r"^\S+$",
        max_length=512,
        description="The image, with a tag or a digest.",
        json_schema_extra=rules(matches(r"^\S+$", "must be an image, such as registry.example/llama:8b")),
    )
    path: AbsolutePath = Field(description="Path of the file in the image.")


class HostPathSource(Part):
    """A model on the machine itself."""

    path: AbsolutePath = Field(description="Absolute path of the file.")


_FIELDS = {"http": "http", "pvc": "pvc", "image": "image", "hostPath": "host_path"}
_SOURCES = ", ".join(_FIELDS)
_ARE_GIVEN = f"[{', '.join(f'has(self.{name})' for name in _FIELDS)}]"
_NAMES_OF_GIVEN = " + ".join(f"(has(self.{name}) ? ' {name}' : '')" for name in _FIELDS)


class ModelSource(Part):
    """Where the model comes from: exactly one of the four."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                f"{_ARE_GIVEN}.exists_one(given, given)",
                f"exactly one of {_SOURCES} is needed",
                f"'exactly one of {_SOURCES} is needed; given:'"
                f" + ({_ARE_GIVEN}.exists(given, given) ? '' : ' none') + {_NAMES_OF_GIVEN}",
            )
        )
    )

    http: HTTPSource | None = Field(default=None, description="From a URL.")
    pvc: PVCSource | None = Field(default=None, description="From a volume.")
    image: ImageSource | None = Field(default=None, description="From a container image.")
    host_path: HostPathSource | None = Field(default=None, description="From the machine's own disk.")

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [name for name in _FIELDS if getattr(self, _FIELDS[name]) is not None]
        if len(given) != 1:
            raise ValueError(f"exactly one of {_SOURCES} is needed; given: {', '.join(given) or 'none'}")
        return self


def _kubernetes_bytes(field: str) -> str:
    """A CEL quantity of a field: Kubernetes' own units have no B, and write a thousand as k."""
    return f"quantity(string({field}).replace('B', '').replace('K', 'k').replace('ki', 'Ki'))"


def _fixed(field: str, message: str) -> dict[str, str]:
    """Return the rule that an optional field is neither given, changed nor taken away later."""
    same = f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"
    return rule(same, f"{field} cannot change, {message}: remove model.cache, then give it anew")


class ModelCache(Part):
    """A volume that keeps the fetched file, one for all workers. On several nodes they need one that is ReadWriteMany,
    which the default storage class of most clouds is not.
    """

    model_config = ConfigDict(
        json_schema_extra=rules(
            _fixed("storageClassName", "since a claim keeps its class"),
            _fixed("accessMode", "since a claim keeps its mode"),
            rule(
                f"{_kubernetes_bytes('self.size')}.compareTo({_kubernetes_bytes('oldSelf.size')}) >= 0",
                "size cannot shrink, since a claim never does: remove model.cache, then give it anew",
            ),
        )
    )

    size: Quantity = Field(
        description="Size of the volume: room for one model; earlier ones are deleted where the next does not fit. "
        "It may grow where the storage class allows it."
    )
    storage_class_name: str | None = Field(
        default=None,
        pattern=SUBDOMAIN_PATTERN,
        max_length=253,
        description="Storage class; the cluster's default where absent. Workers on several nodes need one that can be "
        "ReadWriteMany.",
        json_schema_extra=OBJECT_NAME,
    )
    access_mode: Literal["ReadWriteOnce", "ReadWriteMany"] | None = Field(
        default=None,
        description="How the volume may be mounted: by one node or by many. Where absent, ReadWriteMany if replicas or "
        "autoscaling.maxReplicas is more than 1 when the claim is made; an HPA or KEDA needs it said.",
    )


class Model(Part):
    """The model of a pool."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!has(self.cache) || has(self.source.http)",
                "cache keeps what was fetched, so it goes with source.http alone",
            )
        )
    )

    source: ModelSource = Field(description="Where the GGUF file comes from.")
    cache: ModelCache | None = Field(
        default=None,
        description="Volume to keep the fetched file on, one for all workers; each fetches for itself where absent.",
    )

    @model_validator(mode="after")
    def _only_fetched_files_are_kept(self) -> Self:
        if self.cache is not None and self.source.http is None:
            raise ValueError("cache keeps what was fetched, so it goes with source.http alone")
        return self
