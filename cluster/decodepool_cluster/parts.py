"""How each part of the cluster is started: its command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from decodepool_cluster import addresses
from decodepool_cluster.pki import Identity

USERS = {  # each with a certificate and a kubeconfig of this name
    "admin": Identity("admin", "system:masters"),
    "kube-controller-manager": Identity("system:kube-controller-manager"),
    "kube-scheduler": Identity("system:kube-scheduler"),
    "kube-proxy": Identity("system:kube-proxy"),
}
SERVERS = {
    "kube-apiserver": Identity(
        "kube-apiserver",
        names=("localhost", "kubernetes", "kubernetes.default.svc"),
        addresses=("127.0.0.1", addresses.CONTROL_PLANE, addresses.KUBERNETES_SERVICE),
    ),
    "service-accounts": Identity("service-accounts"),
    "front-proxy-client": Identity("front-proxy-client"),
}
QUICK_CLIENT = ("--kube-api-qps=500", "--kube-api-burst=1000")
"""By default a thousand pods take minutes to be made."""


def etcd(home: Path) -> list[str]:
    """Return etcd's command line. Nothing here has to survive a loss of power."""
    return ["etcd", "--name=etcd", f"--data-dir={home}/etcd", "--unsafe-no-fsync", "--log-level=warn"]


def kube_apiserver(home: Path) -> list[str]:
    """Return the API server's command line."""
    pki = home / "pki"
    return [
        "kube-apiserver",
        "--etcd-servers=http://127.0.0.1:2379",
        f"--advertise-address={addresses.CONTROL_PLANE}",
        f"--service-cluster-ip-range={addresses.SERVICES}",
        f"--client-ca-file={pki}/ca.crt",
        f"--tls-cert-file={pki}/kube-apiserver.crt",
        f"--tls-private-key-file={pki}/kube-apiserver.key",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        f"--kubelet-client-certificate={pki}/admin.crt",
        f"--kubelet-client-key={pki}/admin.key",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki}/service-accounts.key",
        f"--service-account-signing-key-file={pki}/service-accounts.key",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--default-not-ready-toleration-seconds=5",  # pods leave a lost node soon, not after 300 s
        "--default-unreachable-toleration-seconds=5",
        *_aggregation(pki),
    ]


def _aggregation(pki: Path) -> list[str]:
    """Return what lets a pod extend the API, as a source of metrics for an autoscaler does."""
    return [
        f"--requestheader-client-ca-file={pki}/ca.crt",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={pki}/front-proxy-client.crt",
        f"--proxy-client-key-file={pki}/front-proxy-client.key",
    ]


def kube_controller_manager(home: Path) -> list[str]:
    """Return the controllers' command line."""
    return [
        "kube-controller-manager",
        f"--kubeconfig={home}/kube-controller-manager.kubeconfig",
        f"--service-account-private-key-file={home}/pki/service-accounts.key",
        f"--root-ca-file={home}/pki/ca.crt",
        "--use-service-account-credentials",
        "--leader-elect=false",
        *QUICK_CLIENT,
        "--node-monitor-period=1s",
        "--node-monitor-grace-period=8s",  # a node is lost after 8 s of silence, not 50
        "--horizontal-pod-autoscaler-sync-period=2s",
    ]


def kube_scheduler(home: Path) -> list[str]:
    """Return the scheduler's command line."""
    return ["kube-scheduler", f"--kubeconfig={home}/kube-scheduler.kubeconfig", "--leader-elect=false", *QUICK_CLIENT]


def kube_proxy(home: Path) -> list[str]:
    """Return the command line of what makes Services reachable."""
    return ["kube-proxy", f"--config={home}/kube-proxy.json"]


def coredns(home: Path) -> list[str]:
    """Return the command line of the names of Services."""
    return ["coredns", "-conf", f"{home}/Corefile"]


CONTROL_PLANE: dict[str, Callable[[Path], list[str]]] = {
    "etcd": etcd,
    "kube-apiserver": kube_apiserver,
    "kube-controller-manager": kube_controller_manager,
    "kube-scheduler": kube_scheduler,
    "kube-proxy": kube_proxy,
    "coredns": coredns,
}
NODE = [
    "unshare",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "sh",
    str(Path(__file__).with_name("node.sh")),
]
"""A node is a PID and mount namespace: kill its first process and all of it is gone at once."""
