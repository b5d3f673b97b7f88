"""`decodepool run`: the manifest that a cluster would get, served on this machine."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from decodepool_sizing.errors import BadModelFile
from decodepool_sizing.host import available_memory_bytes
from decodepool_sizing.manifest import DecodePool, DecodePoolSpec, ModelSource, load_manifest

from decodepool_cli.faults import DONE, bad_input
from decodepool_cli.fetching import Remote, fetched
from decodepool_cli.host_paths import FolderMap, parse_maps, path_here
from decodepool_cli.interrupts import interrupt_on_terminate
from decodepool_cli.loading import progress_bar, runnable_model
from decodepool_cli.output import size
from decodepool_cli.pool_memory import require_room

if TYPE_CHECKING:
    from decodepool_sizing.capacity import CapacityPlan

    from decodepool_cli.supervisor import ProcessSpec

GATEWAY = "gateway"
ON_CPU = (
    "`run` serves on the CPU alone: say `type: cpu`, or serve the model's file with `decodepool serve --device cuda`"
)


def run(
    *,
    file: Annotated[Path, typer.Argument(metavar="POOL.yaml", help="A DecodePool manifest, alone in its file.")],
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of the pool; several workers take the next.")
    ] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    folder_maps: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="NODE=HERE", help="Take a node's folder for one on this machine; repeatable."),
    ] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log JSON objects, one a line.")] = False,
) -> int:
    """Serve a DecodePool manifest on this machine's CPU."""
    interrupt_on_terminate()
    maps = parse_maps(folder_maps or ())
    pool = _read(file)
    _require_local(pool.spec)
    _say_what_is_left_out(pool.spec)
    if not pool.spec.replicas or pool.spec.suspend:
        _say(f"{pool.metadata.name}: {'suspended' if pool.spec.suspend else '0 replicas'}: there is nothing to run")
        return DONE
    if port + _port_count(pool.spec) > 65536:
        raise bad_input(f"--port: {_port_count(pool.spec)} ports from {port} on would go beyond 65535")
    model = _model_path(pool.spec.model.source, maps)
    _say_plan(pool, _plan(pool.spec, model))
    arguments = [*worker_arguments(pool, model), *(["--log-json"] if log_json else [])]
    return _supervise(pool, arguments, host, port, log_json=log_json)


def worker_arguments(pool: DecodePool, model: Path) -> list[str]:
    """Return the `decodepool serve` arguments, less its address, that a pool's workers have in common."""
    spec = pool.spec
    wanted = {
        "--context": spec.context_tokens,
        "--sessions": spec.sessions_per_worker,
        "--kv-type": spec.kv_type.value,
        "--memory": spec.accelerator.memory,
        "--cache-reserve": spec.cache_reserve,
        "--drain-timeout": spec.drain.timeout_seconds,
        "--name": pool.metadata.name,
    }
    return [str(model), *[f"{name}={value}" for name, value in wanted.items() if value is not None]]


def _read(file: Path) -> DecodePool:
    try:
        return load_manifest(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise bad_input(f"{file}: not UTF-8: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise bad_input(f"{file}: {(error.strerror or str(error)).lower()}") from None


def _require_local(spec: DecodePoolSpec) -> None:
    """Refuse what this machine cannot give."""
    source = spec.model.source
    if spec.accelerator.type == "nvidia":
        raise bad_input(f"spec.accelerator.type: nvidia: {ON_CPU}")
    if source.pvc is not None:
        raise bad_input("spec.model.source.pvc: a volume claim needs a cluster; here, use http or hostPath")
    if source.image is not None:
        raise bad_input("spec.model.source.image: an image needs a cluster; here, use http or hostPath")
    if source.http is not None and source.http.secret_ref is not None:
        raise bad_input("spec.model.source.http.secretRef: a Secret needs a cluster; here, use a URL without")
    if spec.auth is not None:
        raise bad_input("spec.auth.secretRef: a Secret needs a cluster; `decodepool serve --api-keys` reads a file")


def _say_what_is_left_out(spec: DecodePoolSpec) -> None:
    if spec.autoscaling is not None:
        workers = "1 worker runs" if spec.replicas == 1 else f"{spec.replicas} workers run"
        _say(f"spec.autoscaling is for a cluster: here, {workers}")
    if spec.gateway.model_fields_set - {"queue_seconds"}:
        _say("of spec.gateway, queueSeconds alone is heeded here: one gateway runs before several workers")
    if spec.template is not None:
        _say("spec.template is for a cluster: here, it changes nothing")


def _model_path(source: ModelSource, maps: Sequence[FolderMap]) -> Path:
    if source.host_path is not None:
        return path_here(source.host_path.path, maps)
    assert source.http is not None  # the manifest has exactly one source, and the other two were refused
    with progress_bar("model") as progress:
        return fetched(Remote(source.http.url, source.http.sha256), progress)


def _plan(spec: DecodePoolSpec, model: Path) -> CapacityPlan:
    """Plan one worker, as it will plan itself: what cannot fit, alone or with the others, is refused here."""
    runnable_model(model, spec.kv_type)
    from decodepool_sizing.readers import file_reader  # noqa: PLC0415 - the engine takes a second to import
    from decodepool_worker.engine.open import Wanted, plan_worker, read_model  # noqa: PLC0415

    wanted = Wanted(
        context_tokens=spec.context_tokens,
        sessions=spec.sessions_per_worker,
        kv_type=spec.kv_type,
        memory_bytes=spec.accelerator.memory,
        cache_reserve_bytes=spec.cache_reserve,
    )
    try:
        with file_reader(model) as reader:
            plan = plan_worker(read_model(reader), wanted)
    except BadModelFile as error:
        raise bad_input(f"{model}: {error}") from None
    require_room(plan, spec.replicas, available_memory_bytes())
    return plan


def _supervise(pool: DecodePool, arguments: list[str], host: str, port: int, *, log_json: bool) -> int:
    from decodepool_web.sockets import url_of  # noqa: PLC0415
    from decodepool_worker.serving.logs import configure_logging  # noqa: PLC0415 - not before the manifest is sound

    from decodepool_cli.listeners import listeners  # noqa: PLC0415
    from decodepool_cli.supervisor import ProcessSpec, Supervisor  # noqa: PLC0415

    configure_logging(as_json=log_json)
    serve = ("decodepool_cli", "serve", *arguments)
    with listeners(host, port, _port_count(pool.spec)) as held:
        specs = [
            ProcessSpec(name, each, url_of(each), (*serve, f"--worker-tag-of={name}"))
            for name, each in zip(_worker_names(pool.spec), held[-pool.spec.replicas :], strict=True)
        ]
        if pool.spec.replicas > 1:
            command = gateway_command(pool, [(spec.name, spec.url) for spec in specs], log_json=log_json)
            specs.append(ProcessSpec(GATEWAY, held[0], url_of(held[0]), command))
        supervisor = Supervisor(specs, pool.spec.drain.timeout_seconds, lambda spec: _say_ready(pool, spec))
        return asyncio.run(supervisor.run())


def gateway_command(pool: DecodePool, workers: Sequence[tuple[str, str]], *, log_json: bool) -> tuple[str, ...]:
    """Return what starts the gateway, less its address, of workers by their names and URLs."""
    return (
        "decodepool_gateway",
        f"--pool={pool.metadata.name}",
        f"--drain-timeout={pool.spec.drain.timeout_seconds}",
        f"--queue-timeout={pool.spec.gateway.queue_seconds}",
        *[f"--worker={name}={url}" for name, url in workers],
        *([] if log_json else ["--log-plain"]),
    )


def _port_count(spec: DecodePoolSpec) -> int:
    """Ports that a pool takes: several workers have a gateway before them."""
    return spec.replicas + (spec.replicas > 1)


def _worker_names(spec: DecodePoolSpec) -> list[str]:
    return [f"worker {index}" for index in range(spec.replicas)]


def _say_plan(pool: DecodePool, plan: CapacityPlan) -> None:
    workers = f"{pool.spec.replicas} worker{'s' if pool.spec.replicas > 1 else ''}"
    each = f"{plan.sessions} sessions of {plan.context_tokens} tokens"
    _say(f"{pool.metadata.name}: {workers} of {each}, {size(plan.weight_bytes)} of weights in each")


def _say_ready(pool: DecodePool, spec: ProcessSpec) -> None:
    which = "" if spec.name == GATEWAY or pool.spec.replicas == 1 else f" ({spec.name})"
    _say(f"{pool.metadata.name}{which} is ready at {spec.url}/v1, to be watched at {spec.url}/")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
