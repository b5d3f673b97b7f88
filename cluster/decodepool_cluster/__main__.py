"""The command line: `python -m decodepool_cluster --help`."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from decodepool_cluster import addresses, images, parts, tools, up
from decodepool_cluster.cluster import HOME, Cluster
from decodepool_cluster.linux import ClusterFault
from decodepool_cluster.locks import alone_at_once

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def choose(context: typer.Context, home: Annotated[Path, typer.Option(help="The cluster's folder.")] = HOME) -> None:
    """A real Kubernetes cluster on this machine; root is needed."""
    context.obj = home


def chosen(context: typer.Context) -> Cluster:
    """Return the cluster of the chosen folder. ClusterFault without root, with which nothing can be done to it."""
    tools.require_root()
    return Cluster(context.obj, tools.tools_folder())


def running(context: typer.Context) -> Cluster:
    """Return the cluster of the chosen folder. ClusterFault if none was started there."""
    cluster = chosen(context)
    if not cluster.is_started():
        raise ClusterFault(f"no cluster runs in {cluster.home}: `make cluster` starts one, or `start` a bare one")
    return cluster


def known(part: str) -> str:
    """Return the name of a part. BadParameter, with the names, if it is none."""
    names = [*parts.CONTROL_PLANE, *addresses.NODES]
    if part not in names:
        raise typer.BadParameter(f"the parts are {', '.join(names)}")
    return part


Part = Annotated[str, typer.Argument(callback=known)]


@app.command()
def build(
    *, where_possible: Annotated[bool, typer.Option("--where-possible", help="Say why not, and end well.")] = False
) -> None:
    """Install the Debian packages, build the tools and the images: what is missing of them."""
    reason = tools.missing_for_building()
    if where_possible and reason:
        typer.echo(f"no local cluster here: {reason}", err=True)
        return
    typer.echo(tools.build())
    with images.archive(*images.TARGETS) as archive:
        typer.echo(archive)


@app.command()
def start(
    context: typer.Context,
    nodes: Annotated[int, typer.Option(min=0, max=addresses.MOST_NODES, help="How many real nodes.")] = 1,
) -> None:
    """Start a bare cluster: control plane and nodes."""
    cluster = chosen(context)
    with alone_at_once(cluster.home):
        tools.build()
        cluster.start(nodes)


@app.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def execute(context: typer.Context, command: list[str]) -> None:
    """Run a command inside the cluster's network, with its kubectl, helm and KUBECONFIG."""
    cluster = running(context)
    inside = cluster.inside_with_names(*command)
    os.execvpe(inside[0], inside, cluster.environment)  # noqa: S606 - the command is the user's own


@app.command()
def load(
    context: typer.Context, archive: Annotated[Path | None, typer.Argument(exists=True, dir_okay=False)] = None
) -> None:
    """Import an image archive into every node: without one, the images of these sources as they are now."""
    cluster = running(context)
    with nullcontext(archive) if archive else images.archive(*images.TARGETS) as loaded:
        cluster.load(loaded)


@app.command()
def kill(context: typer.Context, part: Part) -> None:
    """Kill a part at once: etcd, kube-apiserver, node-1, ..."""
    running(context).kill(part)


@app.command()
def revive(context: typer.Context, part: Part) -> None:
    """Start a killed part again."""
    running(context).revive(part)


@app.command()
def stop(context: typer.Context) -> None:
    """Stop the cluster and remove every trace of it."""
    cluster = chosen(context)
    with alone_at_once(cluster.home):
        cluster.stop()


@app.command("up")
def all_up(context: typer.Context) -> None:
    """Build and start everything anew: a cluster, the chart in it, a pool that answers."""
    cluster = chosen(context)
    with alone_at_once(cluster.home):
        up.up(cluster)


app.command("down", help="The same as stop.")(stop)


def main() -> None:
    """Run a command; a fault outside is one line and exit code 1."""
    try:
        app()
    except ClusterFault as fault:
        sys.exit(f"decodepool_cluster: {fault}")


if __name__ == "__main__":
    main()
