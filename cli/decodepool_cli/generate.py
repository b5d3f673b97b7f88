"""`decodepool generate`: one answer, streamed: its text on stdout, what there is to say about it on stderr."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from decodepool_sizing.kv import KVType
from decodepool_worker.sessions.checks import SEED_LIMIT

from decodepool_cli.faults import Fault, bad_input
from decodepool_cli.interrupts import interrupt_on_terminate
from decodepool_cli.loading import Device, KeptAs, ModelPath, Special, Threads, runnable_model

if TYPE_CHECKING:
    from decodepool_cli.answering import Answer

DEFAULT_TOKENS = 256


def generate(
    *,
    file: ModelPath,
    prompt: Annotated[str, typer.Option(help="What to answer.")],
    n: Annotated[int, typer.Option("-n", "--max-tokens", min=0, help="Tokens to draw at most.")] = DEFAULT_TOKENS,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token each time.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Draw from the k likeliest tokens; 0 from all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest tokens that reach this share together.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Leave out tokens with less than this share of the likeliest's.")] = 0.0,
    seed: Annotated[
        int | None, typer.Option(min=0, max=SEED_LIMIT - 1, help="The same seed draws the same tokens.")
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=1, help="Tokens that the session may hold; as many as needed by default.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="What the model is told before the prompt.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Go on from the prompt itself, without a template.")] = False,
    special: Special = False,
    device: Device = "cpu",
    kv_type: KeptAs = KVType.F16,
    threads: Threads = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing on stderr.")] = False,
) -> None:
    """Stream one answer in the terminal."""
    interrupt_on_terminate()
    model, shape = runnable_model(file, kv_type, device)
    raw = raw or not model.tokenizer.has_chat_template
    if system is not None and raw:
        raise bad_input("--system: there is no chat template to put it into")
    from decodepool_worker.engine.rows import Sampling  # noqa: PLC0415 - see `loading`

    from decodepool_cli.answering import Ask, Words, answering  # noqa: PLC0415

    ask = Ask(
        file=file,
        words=Words(prompt, system, raw, special),
        sampling=Sampling(temperature, top_k, top_p, min_p),
        seed=seed,
        max_tokens=n,
        context_tokens=context,
        kv_type=kv_type,
        threads=threads,
        device=device,
    )
    with answering(ask, model, shape, sys.stdout) as answer:
        _tell(answer, quiet=quiet)


def _tell(answer: Answer, *, quiet: bool) -> None:
    """Run the answer; then say on stderr how it went, unless whoever read it has gone."""
    try:
        end = answer.run()
    except BrokenPipeError:
        quiet = True
        raise
    finally:
        if not quiet:
            sys.stderr.write(f"{answer.summary()}\n")
    if end.error is not None:
        raise Fault(end.error)
