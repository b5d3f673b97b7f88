"""`decodepool inspect`: what a model file holds, what a session of it costs, and whether the engine runs it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from decodepool_sizing.session_bytes import growing_bytes_per_token, kv_types, window_bytes
from decodepool_sizing.shape import LayerShape, ModelShape, RopeShape

from decodepool_cli.model import FileOrURL, HeaderOption, Model, header_options, read_model
from decodepool_cli.output import AsJson, columns, console, facts, plain, print_json, size

if TYPE_CHECKING:
    from rich.table import Table


def inspect(
    *,
    file: FileOrURL,
    json: AsJson = False,
    header: HeaderOption = None,
) -> None:
    """Show what a model file holds, from its header alone."""
    model = read_model(file, header_options(header))
    if json:
        print_json(described(model))
    else:
        _show(model)


def described(model: Model) -> dict[str, Any]:
    """Return what is printed for `--json`."""
    shape, tokenizer = model.shape, model.tokenizer
    kinds = kv_types(shape) if shape else ()
    return {
        "source": model.source,
        "architecture": model.header.architecture,
        "name": shape.name if shape else None,
        "supported": not model.refusals,
        "refusals": model.refusals,
        "shape": described_shape(shape) if shape else None,
        "tensors": described_tensors(model),
        "tokenizer": {
            "model": tokenizer.model,
            "pre": tokenizer.pre,
            "vocabulary_size": tokenizer.vocabulary_size,
            "chat_template": tokenizer.has_chat_template,
        },
        "kv_bytes_per_token": {kind.value: growing_bytes_per_token(shape, kind) for kind in kinds if shape},
        "window_bytes": {kind.value: window_bytes(shape, kind) for kind in kinds if shape},
        "fixed_state_bytes": shape.fixed_state_bytes if shape else None,
        "file_bytes": model.header.file_bytes,
        "gguf_version": model.header.version,
    }


def described_tensors(model: Model) -> dict[str, Any]:
    """Return the tensors by type: how many, and their bytes in the file."""
    count, total = Counter[str](), Counter[str]()
    for tensor in model.header.tensors:
        count[tensor.type.name] += 1
        total[tensor.type.name] += tensor.size_bytes
    kinds = {name: {"count": count[name], "bytes": amount} for name, amount in total.most_common()}
    return {"count": count.total(), "bytes": total.total(), "by_type": kinds}


def described_shape(shape: ModelShape) -> dict[str, Any]:
    """Return a shape as JSON: a number where all layers have the same, else a list with one a layer."""
    return {
        "block_count": shape.block_count,
        "embedding_length": shape.embedding_length,
        "vocabulary_size": shape.vocabulary_size,
        "context_length": shape.context_length,
        "head_count": _uniform(shape.head_counts),
        "head_count_kv": _uniform(shape.kv_head_counts),
        "key_length": _uniform([layer.key_length for layer in shape.layers]),
        "value_length": _uniform([layer.value_length for layer in shape.layers]),
        "feed_forward_length": _uniform(shape.feed_forward_lengths),
        "window": _uniform(shape.windows),
        "state_bytes": _uniform([layer.state_bytes for layer in shape.layers]),
        "attention_scale": shape.attention_scale,
        "norm_epsilon": shape.norm_epsilon,
        "rope": _described_rope(shape.rope),
        "tied_embeddings": shape.tied_embeddings,
        "experts": _described_experts(shape),
        "prediction_blocks": shape.prediction_blocks,
    }


def _described_rope(rope: RopeShape) -> dict[str, Any]:
    scaling = rope.scaling
    return {
        "dimension_count": rope.dimension_count,
        "base": rope.base,
        "scaling": scaling.kind,
        "factor": scaling.factor,
        "original_context_length": scaling.original_context_length,
    }


def _described_experts(shape: ModelShape) -> dict[str, int] | None:
    if shape.experts is None:
        return None
    return {
        "count": shape.experts.count,
        "used_count": shape.experts.used_count,
        "feed_forward_length": shape.experts.feed_forward_length,
        "shared_feed_forward_length": shape.experts.shared_feed_forward_length,
    }


def _uniform(values: Any) -> Any:
    values = list(values)
    return values[0] if len(set(values)) == 1 else values


def _show(model: Model) -> None:
    out = console()
    out.print(f"[bold]{plain(model.title)}[/bold]", soft_wrap=True)
    out.print()
    out.print(facts(_facts(model)))
    out.print()
    out.print(_tensor_table(model))
    if model.shape:
        out.print()
        out.print(_session_table(model.shape))
    out.print()
    if not model.refusals:
        out.print("[green]The engine runs this model.[/green]")
    for refusal in model.refusals:
        out.print(f"[yellow]Not run:[/yellow] {plain(refusal)}")


def _facts(model: Model) -> list[tuple[str, str]]:
    tokenizer = model.tokenizer
    kind = " ".join(part for part in (tokenizer.model, tokenizer.pre) if part) or "none"
    template = "with a chat template" if tokenizer.has_chat_template else "no chat template"
    return [
        ("architecture", plain(model.header.architecture)),
        *(_shape_facts(model.shape) if model.shape else ()),
        ("tokenizer", f"{plain(kind)}, {tokenizer.vocabulary_size:,} tokens, {template}"),
        ("file", f"{size(model.header.file_bytes)}, GGUF v{model.header.version}"),
    ]


def _shape_facts(shape: ModelShape) -> list[tuple[str, str]]:
    attending = [layer for layer in shape.layers if layer.head_count]
    heads = f"{_span(layer.head_count for layer in attending)} query, "
    heads += f"{_span(layer.kv_head_count for layer in attending)} key-value, of {_span(_lengths(attending))}"
    wide = _span(shape.feed_forward_lengths)
    embeddings = "tied to the output" if shape.tied_embeddings else "apart from the output"
    return [
        ("layers", f"{shape.block_count} of width {shape.embedding_length:,}, feed-forward {wide}"),
        ("heads", heads),
        *_layer_facts(shape, len(attending)),
        ("context", f"{shape.context_length:,} tokens, {_rope(shape.rope)}"),
        ("vocabulary", f"{shape.vocabulary_size:,} rows, {embeddings}"),
    ]


def _layer_facts(shape: ModelShape, attending: int) -> Iterator[tuple[str, str]]:
    windows = [window for window in shape.windows if window]
    if windows:
        yield "windows", f"{len(windows)} of {shape.block_count} layers see {_span(windows)} tokens"
    if attending < shape.block_count:
        yield "recurrent", f"{shape.block_count - attending} of {shape.block_count} layers keep a state of fixed size"
    if shape.experts:
        experts = shape.experts
        shared = f", shared {experts.shared_feed_forward_length:,}" if experts.shared_feed_forward_length else ""
        yield "experts", f"{experts.used_count} of {experts.count}, width {experts.feed_forward_length:,}{shared}"


def _lengths(layers: Sequence[LayerShape]) -> Iterator[int]:
    for layer in layers:
        yield layer.key_length
        yield layer.value_length


def _rope(rope: RopeShape) -> str:
    scaling = "" if rope.scaling.kind == "none" else f", {rope.scaling.kind} scaling by {rope.scaling.factor:g}"
    return f"rope base {rope.base:,.0f}{scaling}"


def _span(values: Iterable[int]) -> str:
    found = set(values)
    low, high = min(found), max(found)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _tensor_table(model: Model) -> Table:
    summary = described_tensors(model)
    table = columns("tensors", "count", "in the file", "share")
    for name, kind in summary["by_type"].items():
        share = kind["bytes"] / summary["bytes"]
        table.add_row(name, f"{kind['count']:,}", size(kind["bytes"]), f"{share:.1%}")
    table.add_section()
    table.add_row("all", f"{summary['count']:,}", size(summary["bytes"]), "")
    return table


def _session_table(shape: ModelShape) -> Table:
    table = columns("a session costs", *kv_types(shape))
    kinds = kv_types(shape)
    table.add_row("each token", *(size(growing_bytes_per_token(shape, kind)) for kind in kinds))
    if any(shape.windows):
        table.add_row("full windows", *(size(window_bytes(shape, kind)) for kind in kinds))
    if shape.fixed_state_bytes:
        table.add_row("fixed state (f32)", *(size(shape.fixed_state_bytes) for _ in kinds))
    return table
