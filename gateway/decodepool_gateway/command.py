"""The gateway's command line: `python -m decodepool_gateway --pool NAME --namespace NS --service NAME-workers`.

Errors are one line on stderr: 2 is bad usage or bad input, 1 is failed.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from decodepool_sizing.api_keys import ApiKeys, KeyFileError
from decodepool_sizing.log_lines import JsonLines
from decodepool_web.logs import Plain, log_to_stderr
from decodepool_web.sockets import inherited_socket, listening_socket

from decodepool_gateway.discovery import Discovery
from decodepool_gateway.discovery.listed import ListedWorker, ListedWorkers
from decodepool_gateway.placements import QueueLimits
from decodepool_gateway.server import GatewayOptions, serve_until_stopped

PROGRAM = "decodepool_gateway"
DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

logger = logging.getLogger("decodepool.gateway")


def gateway(
    *,
    pool: Annotated[str, typer.Option(help="Name of the pool.")],
    namespace: Annotated[str | None, typer.Option(help="Namespace of the pool; with --service.")] = None,
    service: Annotated[str | None, typer.Option(help="Headless Service whose EndpointSlices list the workers.")] = None,
    worker: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=URL", help="A worker started with --worker-tag-of NAME; repeatable. No cluster."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; all of them by default.")] = "0.0.0.0",  # noqa: S104
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8080,
    api_keys: Annotated[
        Path | None, typer.Option(help="File of API keys, one a line; read again as it changes.")
    ] = None,
    queue_timeout: Annotated[
        float, typer.Option(min=0, max=3600, help="Seconds that a new session may wait for a place.")
    ] = 10.0,
    queue_length: Annotated[int, typer.Option(min=0, help="Requests that may wait for a place.")] = 256,
    drain_timeout: Annotated[
        float, typer.Option(min=0, max=86_400, help="Seconds that running streams have after SIGTERM.")
    ] = 30.0,
    lifeline: Annotated[int | None, typer.Option(hidden=True, min=3, help="End when this descriptor closes.")] = None,
    inherited: Annotated[int | None, typer.Option(hidden=True, min=3, help="Listen on this descriptor.")] = None,
    log_plain: Annotated[bool, typer.Option("--log-plain", help="Log plain lines, not JSON objects.")] = False,
) -> int:
    """Stand before a pool's workers: one endpoint for all of them."""
    keys = _keys(api_keys)
    discovery = _discovery(namespace, service, worker)
    try:
        listener = listening_socket(host, port) if inherited is None else inherited_socket(inherited)
    except OSError as error:
        raise typer.BadParameter(str(error), param_hint="--host/--port") from None
    log_to_stderr(Plain() if log_plain else JsonLines())
    address, taken = listener.getsockname()[:2]
    logger.info("pool %s: listening on %s:%d", pool, address, taken)
    limits = QueueLimits(queue_length, queue_timeout)
    options = GatewayOptions(pool, discovery, keys, limits, drain_timeout, lifeline)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve_until_stopped(options, listener))


def _keys(path: Path | None) -> ApiKeys:
    try:
        return ApiKeys() if path is None else ApiKeys.from_file(path)
    except KeyFileError as error:
        raise typer.BadParameter(str(error), param_hint="--api-keys") from None


def _discovery(namespace: str | None, service: str | None, workers: list[str] | None) -> Discovery:
    """Return where the workers are looked for: exactly one way must be given."""
    if workers and not (namespace or service):
        listed = [_listed(each) for each in workers]
        if len({each.name for each in listed}) < len(listed):
            raise typer.BadParameter("a name is given twice", param_hint="--worker")
        return ListedWorkers(listed)
    if namespace and service and not workers:
        return _slices(namespace, service)
    raise typer.BadParameter("give --namespace and --service, or --worker NAME=URL, and not both", param_hint="workers")


def _listed(text: str) -> ListedWorker:
    name, _, url = text.partition("=")
    if not name or not url.startswith("http://"):
        raise typer.BadParameter(f"{text!r} is not NAME=http://HOST:PORT", param_hint="--worker")
    return ListedWorker(name, url.rstrip("/"))


def _slices(namespace: str, service: str) -> Discovery:
    from kubernetes.config import ConfigException  # noqa: PLC0415  half a second that one machine's pool need not wait

    from decodepool_gateway.discovery.slice_watch import cluster_slices  # noqa: PLC0415  as above

    try:
        return cluster_slices(namespace, service)
    except ConfigException as error:
        raise typer.BadParameter(f"no cluster to look in: {error}", param_hint="--service") from None


def main() -> int:
    """Run the command line and return its exit code."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(gateway)
    try:
        code = typer.main.get_command(app)(prog_name=PROGRAM, standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except typer.TyperException as error:
        sys.stderr.write(f"{PROGRAM}: {' '.join(error.format_message().split())}\n")
        return error.exit_code
    return code if isinstance(code, int) else DONE
