"""The operator's settings: read once from the environment, which the chart writes. Each exists here and nowhere
else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from decodepool_operator.planner.state import Images, Scraping

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


class BadSetting(ValueError):  # noqa: N818 - says what it is, as BadModelFile does
    """A variable of the environment that means nothing. The text names it."""


@dataclass(frozen=True)
class Settings:
    """What one operator serves, and how often it looks."""

    images: Images
    namespaces: tuple[str, ...] = ()
    """Namespaces to serve; empty serves the whole cluster."""
    own_namespace: str = "default"
    """Where the operator's Lease, Service and certificate are."""
    reads_nodes: bool = True
    """Whether nodes may be listed. Without, GPU memory comes from the spec or the product alone."""
    allow_local_urls: bool = False
    """Whether headers of models are read from loopback and link-local addresses."""
    http_port: int = 8080
    webhook_service: str = ""
    """Name of the Service in front of the webhook; empty runs no webhook."""
    lease: str = "decodepool-operator"
    """Name of the heartbeat's Lease: of its own for each operator of a cluster."""
    webhook_configuration: str = "decodepool-sidecar"
    """Name of the MutatingWebhookConfiguration that has to trust the webhook."""
    webhook_secret: str = ""
    """Name of the Secret that keeps the webhook's certificates."""
    webhook_port: int = 9443
    scraping: Scraping = field(default_factory=Scraping)
    log_level: str = "INFO"
    report_seconds: float = 10.0
    """Between two polls of a worker's `/v1/capacity`."""
    audit_seconds: float = 300.0
    """Between two checks that the watches told everything."""
    heartbeat_seconds: float = 20.0
    scope_seconds: float = 60.0
    """Between two looks at which of the namespaces can be served, and at who else serves them."""
    blind_limit_seconds: float = 120.0
    """How long no heartbeat may be seen before `/healthz` fails."""
    workers: int = 4
    """Pools handled at once."""

    @property
    def clusterwide(self) -> bool:
        """Whether every namespace is served."""
        return not self.namespaces

    @property
    def heartbeat_namespace(self) -> str:
        """Where the heartbeat is: a namespace that is watched."""
        if self.clusterwide or self.own_namespace in self.namespaces:
            return self.own_namespace
        return self.namespaces[0]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Read every setting; BadSetting names the first variable that cannot be understood."""
        read = _Reader(environment)
        webhook_service = read.text("WEBHOOK_SERVICE", "")
        namespaces = tuple(name.strip() for name in read.text("NAMESPACES", "").split(",") if name.strip())
        return cls(
            images=_images(read),
            namespaces=namespaces,
            own_namespace=read.text("OPERATOR_NAMESPACE", "default"),
            reads_nodes=read.flag("READ_NODES", default=not namespaces),
            allow_local_urls=read.flag("ALLOW_LOCAL_URLS", default=False),
            http_port=read.port("HTTP_PORT", 8080),
            webhook_service=webhook_service,
            lease=read.text("LEASE", "") or "decodepool-operator",
            webhook_configuration=read.text("WEBHOOK_CONFIGURATION", "") or "decodepool-sidecar",
            webhook_secret=read.text("WEBHOOK_SECRET", "") or f"{webhook_service}-cert",
            webhook_port=read.port("WEBHOOK_PORT", 9443),
            scraping=_scraping(read),
            log_level=read.choice("LOG_LEVEL", "INFO", LOG_LEVELS),
            report_seconds=read.seconds("REPORT_SECONDS", 10.0),
            audit_seconds=read.seconds("AUDIT_SECONDS", 300.0),
            heartbeat_seconds=read.seconds("HEARTBEAT_SECONDS", 20.0),
            scope_seconds=read.seconds("SCOPE_SECONDS", 60.0),
            blind_limit_seconds=read.seconds("BLIND_LIMIT_SECONDS", 120.0),
        )


@dataclass(frozen=True)
class _Reader:
    environment: Mapping[str, str]

    def text(self, name: str, default: str) -> str:
        return self.environment.get(f"DECODEPOOL_{name}", default).strip()

    def choice(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        value = self.text(name, default).upper()
        if value not in choices:
            raise BadSetting(f"DECODEPOOL_{name}: {value!r} is none of {', '.join(choices)}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        return self.choice(name, str(default), ("TRUE", "FALSE")) == "TRUE"

    def texts(self, name: str) -> Mapping[str, str]:
        try:
            value = json.loads(self.text(name, "") or "{}")
        except ValueError:
            value = None
        if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
            raise BadSetting(f"DECODEPOOL_{name}: no JSON object of texts")
        return value

    def seconds(self, name: str, default: float) -> float:
        text = self.text(name, str(default))
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0.05 <= value <= 86_400:
            raise BadSetting(f"DECODEPOOL_{name}: {text!r} is not a number of seconds from 0.05 to 86400")
        return value

    def port(self, name: str, default: int) -> int:
        return self.whole(name, default, range(1, 65_536))

    def whole(self, name: str, default: int, allowed: range) -> int:
        text = self.text(name, "") or str(default)
        if not text.isdecimal() or int(text) not in allowed:
            raise BadSetting(f"DECODEPOOL_{name}: {text!r} is no whole number from {allowed[0]} to {allowed[-1]}")
        return int(text)


def _scraping(read: _Reader) -> Scraping:
    named = read.text("POD_MONITOR_SECONDS", "")
    seconds = read.whole("POD_MONITOR_SECONDS", 30, range(1, 3_601)) if named else None
    return Scraping(read.texts("POD_MONITOR_LABELS"), seconds)


def _images(read: _Reader) -> Images:
    names = ("WORKER_IMAGE", "WORKER_CUDA_IMAGE", "GATEWAY_IMAGE", "OPERATOR_IMAGE")
    missing = [f"DECODEPOOL_{name}" for name in names if not read.text(name, "")]
    if missing:
        raise BadSetting(f"{', '.join(missing)}: needed, the images of the pods to make")
    worker, cuda, gateway, operator = (read.text(name, "") for name in names)
    startup = read.whole("STARTUP_SECONDS", 1800, range(30, 86_401))
    return Images(worker, cuda, gateway, operator, read.text("IMAGE_PULL_POLICY", "") or None, startup)
