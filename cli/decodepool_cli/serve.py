"""`decodepool serve`: one worker, from a model file to a port."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import uvloop
from decodepool_sizing.api_keys import ApiKeys, KeyFileError
from decodepool_sizing.errors import BadModelFile
from decodepool_sizing.kv import KVType
from decodepool_sizing.session_ids import worker_tag
from decodepool_web.sockets import inherited_socket, is_loopback, url_of
from decodepool_worker.serving.ending import end_process
from decodepool_worker.serving.logs import configure_logging
from decodepool_worker.serving.server import ServerOptions, serve_until_stopped
from decodepool_worker.serving.service import Served, Service
from decodepool_worker.text.errors import BadTokenizer

from decodepool_cli.amounts import amount_option
from decodepool_cli.faults import bad_input
from decodepool_cli.listeners import listener
from decodepool_cli.loading import Device, KeptAs, ModelPath, Threads, runnable_model
from decodepool_cli.output import size

if TYPE_CHECKING:
    from decodepool_sizing.capacity import CapacityPlan
    from decodepool_worker.engine.open import Wanted

logger = logging.getLogger("decodepool.serve")


def serve(
    *,
    file: ModelPath,
    context: Annotated[int, typer.Option(min=1, help="Tokens that each session may hold.")],
    sessions: Annotated[
        int | None,
        typer.Option(
            min=1, help="Hold this many sessions; 8 by default, or with --memory or --cache-reserve as many as fit."
        ),
    ] = None,
    device: Device = "cpu",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    kv_type: KeptAs = KVType.F16,
    memory: Annotated[str | None, typer.Option(help="Use this much memory, such as 4GiB.")] = None,
    cache_reserve: Annotated[
        str | None, typer.Option(help="Bytes that caches must leave to sessions, such as 1GiB.")
    ] = None,
    threads: Threads = None,
    api_keys: Annotated[Path | None, typer.Option(help="File of API keys, one a line.")] = None,
    drain_timeout: Annotated[
        float, typer.Option(min=0, max=86_400, help="Seconds that running streams have after SIGTERM.")
    ] = 30.0,
    name: Annotated[str | None, typer.Option(help="What clients call the model; the file's name by default.")] = None,
    worker_tag_of: Annotated[
        str | None,
        typer.Option(metavar="UID", help="Mark sessions' ids as this worker's, so that a pool's gateway finds them."),
    ] = None,
    local_clients: Annotated[
        bool,
        typer.Option(
            "--local-clients", help="Serve clients of this machine, or pod, alone; probes and counts are anybody's."
        ),
    ] = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log JSON objects, one a line.")] = False,
    lifeline: Annotated[int | None, typer.Option(hidden=True, min=3, help="End when this descriptor closes.")] = None,
    inherited: Annotated[int | None, typer.Option(hidden=True, min=3, help="Listen on this descriptor.")] = None,
) -> None:
    """Serve one model's sessions over HTTP."""
    memory_bytes, reserve_bytes = amount_option(memory, "--memory"), amount_option(cache_reserve, "--cache-reserve")
    if name is not None and not (name.strip() and name.isprintable()):
        raise bad_input(f"--name: {name!r} is no name")
    service = Service(_keys(api_keys), tag=_tag(worker_tag_of), local_clients=local_clients)
    runnable_model(file, kv_type, device)
    configure_logging(as_json=log_json)
    listening = listener(host, port) if inherited is None else inherited_socket(inherited)
    url = url_of(listening)
    _warn_if_open(service, listening)

    def load() -> Served:
        from decodepool_worker.engine.open import Wanted  # noqa: PLC0415 - the port answers while the engine is imported

        return _load(
            file, Wanted(context, sessions, kv_type, memory_bytes, reserve_bytes, threads, device), service, name
        )

    options = ServerOptions(drain_timeout_seconds=drain_timeout, lifeline=lifeline)
    _run_to_the_end(serve_until_stopped(service, listening, load, lambda served: _announce(served, url), options))


def _run_to_the_end(work: Coroutine[None, None, int]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(work)
    end_process(code)


def _warn_if_open(service: Service, listening: socket.socket) -> None:
    if not (service.keys.keys or service.local_clients or is_loopback(listening)):
        logger.warning("anybody who reaches %s may use it: --api-keys FILE asks for a key", listening.getsockname()[0])


def _load(file: Path, wanted: Wanted, service: Service, name: str | None) -> Served:
    from decodepool_worker.serving.loading import load_served  # noqa: PLC0415 - as above

    try:
        return load_served(file, wanted, service, name, lambda plan: _say_plan(name or file.stem, plan))
    except (BadModelFile, BadTokenizer) as error:
        raise bad_input(f"{file}: {error}") from None


def _say_plan(name: str, plan: CapacityPlan) -> None:
    """Say in one line what is being loaded, which takes a while."""
    held = plan.weight_bytes + plan.workspace_bytes + plan.reserve_bytes + plan.cache_bytes
    _say(f"{name}: {plan.sessions} sessions of {plan.context_tokens} tokens, {size(held)} in all; loading")


def _announce(served: Served, url: str) -> None:
    """Say in one line that it is ready, and where."""
    holds = f"{served.session_capacity} sessions of {served.context_tokens} tokens"
    _say(f"{served.name} is ready: {holds} at {url}/v1, to be watched at {url}/")


def _say(line: str) -> None:
    with suppress(BrokenPipeError):  # who read it has left, which ends no server
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def _tag(uid: str | None) -> str | None:
    if uid is not None and not uid.strip():
        raise bad_input("--worker-tag-of: it is empty")
    return None if uid is None else worker_tag(uid)


def _keys(path: Path | None) -> ApiKeys:
    if path is None:
        return ApiKeys()
    try:
        return ApiKeys.from_file(path)
    except KeyFileError as error:
        raise bad_input(f"--api-keys: {error}") from None
