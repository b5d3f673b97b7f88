"""What a cluster is made of before its parts start: a network, identities, the files of each part."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path

from decodepool_cluster import addresses, linux, parts, settings
from decodepool_cluster.linux import run
from decodepool_cluster.pki import Authority, Identity


def authority(home: Path) -> Authority:
    """Return the cluster's certificate authority, made or not."""
    return Authority(home / "pki")


def network(namespace: Path) -> None:
    """Make a network namespace without a way out, kept alive by a mount, with the addresses of the cluster."""
    namespace.touch()
    run(["unshare", f"--net={namespace}", "true"])
    with linux.network_of(namespace):
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        run(["ip", "link", "set", "lo", "up"])
        for address in (addresses.CONTROL_PLANE, *addresses.NODES.values()):
            run(["ip", "address", "add", f"{address}/32", "dev", "lo"])
        # Without a route a connection to a Service fails before kube-proxy's rules can redirect it.
        run(["ip", "route", "add", addresses.SERVICES, "dev", "lo", "src", addresses.CONTROL_PLANE])


def control_plane(home: Path) -> None:
    """Write the certificates and files of the control plane."""
    issuer = authority(home)
    issuer.create()
    for name, identity in {**parts.SERVERS, **parts.USERS}.items():
        issuer.issue(name, identity)
    for name in parts.USERS:
        write(home / f"{name}.kubeconfig", settings.kubeconfig(issuer.folder, name))
    write(home / "kube-proxy.json", settings.kube_proxy(home))
    write(home / "Corefile", settings.corefile(home))
    write(home / "resolv.conf", settings.RESOLV_CONF)


def node(home: Path, name: str, cgroup: str) -> dict[str, str]:
    """Write a node's certificate, files and cgroup; return the environment of its script."""
    folder, address, issuer = home / "nodes" / name, addresses.NODES[name], authority(home)
    for inner in ("lib", "log", "sys", "cni"):
        (folder / inner).mkdir(parents=True, exist_ok=True)
    own_cgroup = f"{cgroup}/{name}"
    linux.make_cgroup(own_cgroup)
    issuer.issue(name, Identity(f"system:node:{name}", "system:nodes", addresses=(address,)))
    write(folder / "kubeconfig", settings.kubeconfig(issuer.folder, name))
    write(folder / "kubelet.json", settings.kubelet(issuer.folder, name, own_cgroup))
    write(folder / "containerd.toml", settings.containerd(folder))
    write(folder / "cni" / "pods.conflist", settings.pod_network(name))
    return {"NODE": str(folder), "NAME": name, "ADDRESS": address, "IMAGES": str(home / "images")}


def write(path: Path, content: object) -> None:
    """Write a text as it is, anything else as JSON."""
    path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))


def remove(folder: Path, last: str) -> None:
    """Remove a folder, the file that says whose it is last: whoever is cut short here can be followed up."""
    if not folder.exists():
        return
    for each in folder.iterdir():
        if each.is_dir():
            shutil.rmtree(each, ignore_errors=True)
        elif each.name != last:
            each.unlink()
    (folder / last).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()
