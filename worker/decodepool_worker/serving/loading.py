"""From a model file to what is served: the engine's door, the text side, and the sessions between them."""

from __future__ import annotations

from pathlib import Path

from decodepool_worker.engine.open import Loaded, OnPlan, Wanted, open_model, unheard
from decodepool_worker.serving.prompts import Prompts
from decodepool_worker.serving.service import Served, Service
from decodepool_worker.sessions.residence import Residence
from decodepool_worker.sessions.worker import Worker
from decodepool_worker.text.templates import ChatTemplate
from decodepool_worker.text.tokenizer import Tokenizer

CHAT_TEMPLATE = "tokenizer.chat_template"


def load_served(
    path: Path, wanted: Wanted, service: Service, name: str | None = None, on_plan: OnPlan = unheard
) -> Served:
    """Open a model and put sessions on it. Blocks for as long as that takes; `on_plan` hears early what it will hold.

    `name` is what clients call it: the file's own name without its ending, where none is given. Raises what
    `open_model` raises, and `BadTokenizer`.
    """
    loaded = open_model(path, wanted, on_plan=on_plan)
    try:
        return served_from(loaded, name or path.stem, service)
    except BaseException:
        loaded.engine.close()
        raise


def served_from(loaded: Loaded, name: str, service: Service) -> Served:
    """Put sessions on an engine that is ready. BadTokenizer where the metadata has a broken one."""
    tokenizer = Tokenizer.from_metadata(loaded.metadata)
    source = loaded.metadata.get(CHAT_TEMPLATE)
    template = ChatTemplate(source if isinstance(source, str) else None, bos=tokenizer.bos_text, eos=tokenizer.eos_text)
    plan = loaded.plan
    residence = Residence(
        loaded.engine,
        lambda after: tokenizer.detokenizer(after=after),
        context_tokens=plan.context_tokens,
        sessions=plan.sessions,
        observe_step=service.metrics.observe_step,
        tag=service.tag,
    )
    return Served(
        name=name,
        architecture=loaded.shape.architecture,
        vocabulary_size=loaded.engine.vocabulary_size,
        context_tokens=plan.context_tokens,
        session_capacity=plan.sessions,
        kv_type=plan.kv_type.value,
        fingerprint=loaded.fingerprint,
        limited_by=plan.limited_by.value,
        planned=_with_sum(loaded.planned()),
        measure=loaded.measured,
        worker=Worker(residence),
        prompts=Prompts(tokenizer, template, service.offload, context_tokens=plan.context_tokens),
        close=loaded.engine.close,
    )


def _with_sum(planned: dict[str, int]) -> dict[str, int]:
    return {**planned, "sessions_and_cache_bytes": planned["reserve_bytes"] + planned["cache_bytes"]}
