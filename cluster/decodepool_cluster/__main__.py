"""The command line: `python -m decodepool_cluster --help`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from decodepool_cluster import addresses, images, tools, up
from decodepool_cluster.cluster import Cluster
from decodepool_cluster.linux import ClusterFault

HOME = Path(__file__).parents[2] / ".cluster"

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)


@app.callback()
def choose(context: typer.Context, home: Annotated[Path, typer.Option(help="The cluster's folder.")] = HOME) -> None:
    """A real Kubernetes cluster on this machine; root is needed."""
    context.obj = home


def chosen(context: typer.Context) -> Cluster:
    """Return the cluster of the chosen folder. ClusterFault without root, with which nothing can be done to it."""
    tools.require_root()
    return Cluster(context.obj, tools.tools_folder())


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
    typer.echo(images.archive(*images.TARGETS))


@app.command()
def start(
    context: typer.Context,
    nodes: Annotated[int, typer.Option(min=0, max=addresses.MOST_NODES, help="How many real nodes.")] = 1,
) -> None:
    """Start a bare cluster: control plane and nodes."""
    tools.build()
    chosen(context).start(nodes)


@app.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def execute(context: typer.Context, command: list[str]) -> None:
    """Run a command inside the cluster's network, with its kubectl, helm and KUBECONFIG."""
    cluster = chosen(context)
    inside = cluster.inside_with_names(*command)
    os.execvpe(inside[0], inside, cluster.environment)  # noqa: S606 - the command is the user's own


@app.command()
def load(context: typer.Context, archive: Annotated[Path | None, typer.Argument()] = None) -> None:
    """Import an image archive into every node: without one, the images of these sources as they are now."""
    chosen(context).load(archive or images.archive(*images.TARGETS))


@app.command()
def kill(context: typer.Context, part: str) -> None:
    """Kill a part at once: etcd, kube-apiserver, node-1, ..."""
    chosen(context).kill(part)


@app.command()
def revive(context: typer.Context, part: str) -> None:
    """Start a killed part again."""
    chosen(context).revive(part)


@app.command()
def stop(context: typer.Context) -> None:
    """Stop the cluster and remove every trace of it."""
    chosen(context).stop()


@app.command("up")
def all_up(context: typer.Context) -> None:
    """Build and start everything anew: a cluster, the chart in it, a pool that answers."""
    up.up(chosen(context))


app.command("down", help="The same as stop.")(stop)


def main() -> None:
    """Run a command; a fault outside is one line and exit code 1."""
    try:
        app()
    except ClusterFault as fault:
        sys.exit(f"decodepool_cluster: {fault}")


if __name__ == "__main__":
    main()
