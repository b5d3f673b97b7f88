"""The files that parts of the cluster are configured by."""

from __future__ import annotations

from pathlib import Path

from decodepool_cluster import addresses

PAUSE_IMAGE = "localhost/pause:1"
RESOLV_CONF = f"""\
nameserver {addresses.CONTROL_PLANE}
search default.svc.{addresses.DOMAIN} svc.{addresses.DOMAIN} {addresses.DOMAIN}
options ndots:5
"""
"""How names are found in the cluster, as in a pod of the namespace `default`."""


def kubeconfig(pki: Path, name: str) -> object:
    """Return how a user of the cluster reaches the API server."""
    server = {"server": addresses.API_SERVER, "certificate-authority": f"{pki}/ca.crt"}
    user = {"client-certificate": f"{pki}/{name}.crt", "client-key": f"{pki}/{name}.key"}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "local", "cluster": server}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": "local", "context": {"cluster": "local", "user": name}}],
        "current-context": "local",
    }


def kube_proxy(home: Path) -> object:
    """Return kube-proxy's configuration."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": f"{home}/kube-proxy.kubeconfig"},
        "hostnameOverride": "node-1",
        "mode": "nftables",
        "clusterCIDR": addresses.PODS,
        # Only the machine's own network namespace may set these; zero leaves them alone.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpCloseWaitTimeout": "0s", "tcpEstablishedTimeout": "0s"},
    }


def corefile(home: Path) -> str:
    """Return CoreDNS's configuration."""
    return f"""\
.:53 {{
  bind {addresses.CONTROL_PLANE}
  errors
  kubernetes {addresses.DOMAIN} {{
    kubeconfig {home}/admin.kubeconfig
  }}
}}
"""


def kubelet(pki: Path, name: str, cgroup: str) -> object:
    """Return a node's kubelet configuration."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": addresses.NODES[name],
        "healthzBindAddress": addresses.NODES[name],
        "tlsCertFile": f"{pki}/{name}.crt",
        "tlsPrivateKeyFile": f"{pki}/{name}.key",
        "authentication": {"x509": {"clientCAFile": f"{pki}/ca.crt"}, "anonymous": {"enabled": False}},
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}",
        "failCgroupV1": False,  # since 1.35 kubelet refuses cgroup v1 unless told otherwise
        "failSwapOn": False,
        "evictionHard": {"nodefs.available": "0%", "imagefs.available": "0%", "memory.available": "100Mi"},
        "imageGCHighThresholdPercent": 100,  # a collected image could not be pulled again
        "clusterDNS": [addresses.CONTROL_PLANE],
        "clusterDomain": addresses.DOMAIN,
        "resolvConf": "",
        "nodeLeaseDurationSeconds": 4,
        "nodeStatusUpdateFrequency": "2s",
    }


def containerd(node_home: Path) -> str:
    """Return a node's containerd configuration: nothing that the machine has of its own is read or changed."""
    return f"""\
version = 4
imports = []
disabled_plugins = ["io.containerd.internal.v1.opt"]
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE_IMAGE}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true  # where root lacks CAP_SYS_RESOURCE no score can be lowered
  cdi_spec_dirs = []
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "{node_home}/cni"
"""


def pod_network(node: str) -> object:
    """Return how a node's pods are connected: routed, each by a link of its own."""
    pods = {
        "type": "host-local",
        "dataDir": "/run/cni-addresses",  # on the node's tmpfs: a lost node frees its addresses
        "ranges": [[{"subnet": addresses.pods_of(node)}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    return {
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [{"type": "ptp", "ipam": pods}, {"type": "portmap", "capabilities": {"portMappings": True}}],
    }
