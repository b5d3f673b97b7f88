"""The cluster's programs: Debian packages, and tools built once from the Go modules pinned in ../go.

Built tools lie in the user's cache under a digest of their modules: from nothing that takes ten minutes and more, and
nothing at all after that.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from decodepool_sizing.cache_folder import cache_folder

from decodepool_cluster.linux import ClusterFault, cgroup_hierarchies, run
from decodepool_cluster.locks import alone
from decodepool_cluster.say import say

MODULES = Path(__file__).parents[1] / "go"
PACKAGES = {  # a Debian package and a file of it that is used
    "runc": "/usr/sbin/runc",
    "containernetworking-plugins": "/usr/lib/cni/ptp",
    "iproute2": "/usr/sbin/ip",
    "iptables": "/usr/sbin/iptables",
    "nftables": "/usr/sbin/nft",
    "busybox-static": "/bin/busybox",
    "mmdebstrap": "/usr/bin/mmdebstrap",
    "docker.io": "/usr/sbin/dockerd",  # with a containerd of its own, which builds images and is no part of a node
}
KUBERNETES = "k8s.io/kubernetes"
SERVICE_POLICY = Path("/usr/sbin/policy-rc.d")
"""What Debian's packages ask before they start a service; 101 forbids it."""
NEEDS_ROOT = "a local cluster needs root: its nodes are namespaces, mounts and cgroups of this machine"
VERSION_PACKAGE = "k8s.io/component-base/version"


@dataclass(frozen=True)
class Module:
    """A Go module whose `tool` directives name programs, and its linker flags."""

    folder: Path
    linker_flags: str

    @property
    def command(self) -> list[str]:
        """Return the build's command line, but for where it writes."""
        return ["go", "-C", str(self.folder), "build", "-trimpath", "-buildvcs=false", f"-ldflags={self.linker_flags}"]

    def identity(self) -> bytes:
        """Return all that decides what is built."""
        sources = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return b"\0".join([self.linker_flags.encode(), *(path.read_bytes() for path in sources)])


def modules() -> list[Module]:
    """Return the pinned modules; Kubernetes would else not know its own version."""
    return [
        Module(MODULES / "kubernetes", f"-s -w {_version_flags()}"),
        Module(MODULES / "tools", "-s -w"),
    ]


def _version_flags() -> str:
    pinned = re.search(rf"{KUBERNETES} (v(\d+)\.(\d+)\S*)", (MODULES / "kubernetes" / "go.mod").read_text())
    assert pinned, "the Kubernetes module pins Kubernetes"
    values = {"gitVersion": pinned[1], "gitMajor": pinned[2], "gitMinor": pinned[3]}
    return " ".join(f"-X {VERSION_PACKAGE}.{name}={value}" for name, value in values.items())


def tools_folder() -> Path:
    """Return the folder of the tools that these modules make, whether or not they are built."""
    digest = sha256(b"\0".join(module.identity() for module in modules()))
    return cache_folder("cluster") / f"bin-{digest.hexdigest()[:16]}"


def are_built() -> bool:
    """Tell whether the tools are there."""
    return tools_folder().is_dir()


def missing_for_building() -> str | None:
    """Return in a line why nothing can be built or started here, or None."""
    if os.geteuid() != 0:
        return NEEDS_ROOT
    if not may_make_namespaces():
        return "a local cluster needs namespaces and cgroups, which this root may not make: is this a container?"
    if not are_built() and not shutil.which("go"):
        return "a local cluster is built from Go modules once: Go 1.21 or newer is needed"
    if missing_packages() and not shutil.which("apt-get"):
        return f"a local cluster needs {', '.join(missing_packages())}; they are installed on Debian and Ubuntu alone"
    return None


def require_root() -> None:
    """ClusterFault where this process is not root's."""
    if os.geteuid() != 0:
        raise ClusterFault(NEEDS_ROOT)


def may_make_namespaces() -> bool:
    """Tell whether this root is one that may make nodes: a container's usually may not."""
    try:
        run(["unshare", "--mount", "--net", "--pid", "--fork", "mount", "-t", "tmpfs", "tmpfs", "/run"])
    except ClusterFault:
        return False
    return all(os.access(hierarchy, os.W_OK) for hierarchy in cgroup_hierarchies())


def missing_packages() -> list[str]:
    """Return the Debian packages that are not installed."""
    return [package for package, file in PACKAGES.items() if not Path(file).exists()]


def build() -> Path:
    """Install and build what is missing; return the folder of the tools."""
    if reason := missing_for_building():
        raise ClusterFault(reason)
    if packages := missing_packages():
        _install(packages)
    folder = tools_folder()
    with alone(folder):
        if not folder.is_dir():
            _build_into(folder)
    return folder


def _install(packages: list[str]) -> None:
    say(f"installing {', '.join(packages)}")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with no_service_started():
        run(["apt-get", "update", "-qq"], environment=quiet)
        run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages], environment=quiet)


@contextmanager
def no_service_started() -> Iterator[None]:
    """Have Debian start no service of what is installed meanwhile: a cluster runs its own, in its own namespaces."""
    if SERVICE_POLICY.exists():
        yield
        return
    SERVICE_POLICY.write_text("#!/bin/sh\nexit 101\n")
    try:
        SERVICE_POLICY.chmod(0o755)
        yield
    finally:
        SERVICE_POLICY.unlink()


def _build_into(folder: Path) -> None:
    say("building Kubernetes, etcd, containerd, CoreDNS and Helm from their sources, once: ten minutes on two cores")
    aside = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    for module in modules():
        built = subprocess.run(  # noqa: S603 - not `run`: the compiler's output is for the reader
            [*module.command, "-o", f"{aside}/", "tool"], env={**os.environ, "CGO_ENABLED": "0"}, check=False
        )
        if built.returncode:
            raise ClusterFault(f"building {module.folder.name} failed")
    (aside / "server").rename(aside / "etcd")  # as its main package is called
    aside.rename(folder)
    others = (other for other in folder.parent.glob("bin-*") if other.is_dir() and not other.suffix)
    _forget_old(other for other in others if other != folder)


def _forget_old(folders: Iterable[Path]) -> None:
    """Remove all but the tools built last: clusters of other sources may still run on those."""
    for old in sorted(folders, key=lambda path: path.stat().st_mtime)[:-1]:
        shutil.rmtree(old)
