"""What has broken elsewhere, tried on a GPU's sessions; in each case a neighbour draws what it draws alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from decodepool_kernels.cuda.device import Gpu
from decodepool_kernels.cuda.library import KernelLibrary
from decodepool_worker.engine.open import MeasuredEngine
from decodepool_worker.engine.rows import Sampling
from decodepool_worker.sessions.decodes import DecodeRequest
from decodepool_worker.sessions.errors import ContextFull, InvalidRequest, NoRoom
from decodepool_worker.sessions.residence import Residence
from decodepool_worker.sessions.session import Session
from decodepool_worker.verify.lab import Listener, begin_decode, drive

from tests.gpu.test_engine import ON_GPU, MakeFile, opened, tiny_file
from tests.tiny.catalogue import WEIGHT_TYPES

__all__ = ["tiny_file"]

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

CONTEXT, SESSIONS = 192, 8
GREEDY, WARM = Sampling(temperature=0.0), Sampling(temperature=0.9, top_p=0.9)
BIASED = Sampling(temperature=0.8, logit_bias=((5, 8.0), (6, -8.0)))
PROMPT = [(7 * i + i * i) % 96 for i in range(20)]
NEIGHBOUR_TOKENS = 150


def lone(
    engine: MeasuredEngine, prompt: Sequence[int], seed: int, sampling: Sampling, request: DecodeRequest
) -> list[int]:
    """Return what a session draws with the engine to itself."""
    residence = Residence(engine, context_tokens=CONTEXT, sessions=1)
    listener = begin_decode(residence, residence.create(prompt, seed=seed, sampling=sampling), request)
    drive(residence)
    return listener.tokens


@dataclass
class House:
    """Sessions on one engine, and a neighbour in their midst."""

    engine: MeasuredEngine
    residence: Residence = field(init=False)
    neighbour: Listener = field(init=False)

    def __post_init__(self) -> None:
        self.residence = Residence(self.engine, context_tokens=CONTEXT, sessions=SESSIONS)
        session = self.residence.create(PROMPT[:9], seed=77, sampling=WARM)
        self.neighbour = begin_decode(self.residence, session, DecodeRequest(NEIGHBOUR_TOKENS))

    def create(self, prompt: Sequence[int] = PROMPT, seed: int = 1, sampling: Sampling = WARM) -> Session:
        return self.residence.create(prompt, seed=seed, sampling=sampling)

    def decode(self, session: Session, tokens: int | None = None) -> Listener:
        return begin_decode(self.residence, session, DecodeRequest(tokens))

    def run(self, ticks: int) -> None:
        for _ in range(ticks):
            self.residence.tick()


def take_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail whatever is compiled, captured or allocated from here on."""
    for of, name in ((Gpu, "captured"), (Gpu, "allocate"), (Gpu, "pinned"), (Gpu, "load"), (KernelLibrary, "function")):
        monkeypatch.setattr(of, name, _too_late(name))


def _too_late(name: str) -> Callable[..., None]:
    def refused(*args: object, **kwargs: object) -> None:
        raise AssertionError(f"{name} once the worker was ready")

    return refused


@pytest.fixture(scope="module")
def engine(tiny_file: MakeFile) -> Iterator[MeasuredEngine]:
    with opened(tiny_file(WEIGHT_TYPES[2])) as engine:
        yield engine


@pytest.fixture
def house(engine: MeasuredEngine) -> Iterator[House]:
    """What is left to do is done at the end, and the neighbour held to what it draws alone."""
    house = House(engine)
    yield house
    drive(house.residence)
    assert house.neighbour.tokens == lone(engine, PROMPT[:9], 77, WARM, DecodeRequest(NEIGHBOUR_TOKENS))


def test_draws_follow_the_session_whoever_ends_joins_or_is_cut_short(house: House) -> None:
    """A18, a random stream that follows the row."""
    a, b, c = (house.create(seed=seed) for seed in (1, 2, 3))
    house.residence.create(PROMPT, sampling=WARM)  # without a seed
    house.decode(a, 5)
    cut = house.decode(b, 100)
    drawn: list[int] = []
    for _ in range(6):
        part = house.decode(c, 7)
        house.run(9)
        drawn += part.tokens
    house.residence.cancel(b.id)
    d, e = house.create(seed=4), house.create(seed=5, sampling=GREEDY)
    joined = [house.decode(d, 40), house.decode(e, 40)]
    drive(house.residence)
    wanted = [lone(house.engine, PROMPT, seed, WARM, DecodeRequest(100)) for seed in (2, 3, 4)]
    assert 40 < len(cut.tokens) < 100
    assert cut.tokens == wanted[0][: len(cut.tokens)]
    assert drawn == wanted[1][:42]
    assert joined[0].tokens == wanted[2][:40]
    assert joined[1].tokens == lone(house.engine, PROMPT, 5, GREEDY, DecodeRequest(40))


KINDS: dict[str, tuple[Sampling, DecodeRequest]] = {
    "biased": (BIASED, DecodeRequest(30)),
    "with stops": (WARM, DecodeRequest(30, stop_tokens=frozenset(range(0, 96, 3)))),
    "plain": (WARM, DecodeRequest(30)),
    "the best": (Sampling(temperature=1.0, top_k=1), DecodeRequest(30)),
    "penalised": (Sampling(temperature=0.7, repetition_penalty=1.3), DecodeRequest(30)),
    "with log-probabilities": (WARM, DecodeRequest(30, top_logprobs=3)),
}


def test_no_session_takes_on_anothers_bias_stops_or_limits(house: House) -> None:
    """A19, limits or a bias that act on another: rows are used by every kind in turn."""
    chance, live = random.Random(5), list[tuple[Session, str, int, Listener]]()
    for seed in range(60):
        if len(live) == SESSIONS - 1:
            house.residence.close(live.pop(chance.randrange(len(live)))[0].id)
        kind = chance.choice(list(KINDS))
        sampling, request = KINDS[kind]
        session = house.create(PROMPT[: 3 + seed % 17], seed, sampling)
        live.append((session, kind, seed, begin_decode(house.residence, session, request)))
        house.run(chance.randrange(12))
    drive(house.residence)
    for _, kind, seed, listener in live:
        sampling, request = KINDS[kind]
        assert listener.tokens == lone(house.engine, PROMPT[: 3 + seed % 17], seed, sampling, request), kind


@pytest.mark.parametrize("temperature", [1e-3, 1e-5, 1e-8, 1e-38, 1e-45, 5e-324])
@pytest.mark.parametrize("rest", [{}, {"top_k": 96}, {"top_k": 97}, {"top_p": 1e-9}], ids=str)
def test_small_temperatures_draw_the_best_token(house: House, temperature: float, rest: dict[str, float]) -> None:
    """A20, tokens of tiny temperatures."""
    session = house.create(sampling=Sampling(temperature=temperature, **rest))  # type: ignore[arg-type]
    drawn = house.decode(session, 12)
    drive(house.residence)
    assert drawn.tokens == lone(house.engine, PROMPT, 1, GREEDY, DecodeRequest(12))


@pytest.mark.parametrize("length", [CONTEXT - 2, CONTEXT - 1, CONTEXT])
@pytest.mark.parametrize("asked", [1, 2, 1000, None])
def test_a_context_ends_with_the_tokens_that_fit(house: House, length: int, asked: int | None) -> None:
    """A22, the end of the context; four beside it are as full."""
    prompt = (PROMPT * 10)[:length]
    others = [house.decode(house.create((PROMPT * 10)[: CONTEXT - 3], seed)) for seed in range(4)]
    session = house.create(prompt)
    drawn = house.decode(session, asked)
    drive(house.residence)
    assert len(drawn.tokens) == min(CONTEXT - length, asked or CONTEXT)
    assert drawn.end is not None
    assert drawn.end.finish_reason == "length"
    with pytest.raises(ContextFull):
        house.residence.append(session.id, [1] * (CONTEXT - drawn.end.length + 1))
    (fork,) = house.residence.fork(session.id)
    assert house.decode(fork, 0) is not None
    for seed, other in enumerate(others):
        assert other.tokens == lone(house.engine, (PROMPT * 10)[: CONTEXT - 3], seed, WARM, DecodeRequest())


REFUSED: dict[str, tuple[Sequence[int], type[Exception]]] = {
    "too long": ([1] * 100, ContextFull),
    "a token that is none, in the middle": ([1, 2, 96, 3], InvalidRequest),
    "a negative token": ([-1], InvalidRequest),
    "nothing": ([], InvalidRequest),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_append_leaves_the_session_as_it_was(house: House, name: str) -> None:
    """A23, a refused append that spoils its session; A32 and A34, ids that are none, and no ids."""
    tokens, error = REFUSED[name]
    session = house.create((PROMPT * 10)[:150])
    drive(house.residence)
    with pytest.raises(error):
        house.residence.append(session.id, tokens)
    drawn = house.decode(session, 20)
    drive(house.residence)
    assert drawn.tokens == lone(house.engine, (PROMPT * 10)[:150], 1, WARM, DecodeRequest(20))


def test_nothing_is_lost_with_a_session(engine: MeasuredEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A24, a little memory lost with each session; A29, a cancelled one that takes others along."""
    chance, residence = random.Random(9), Residence(engine, context_tokens=CONTEXT, sessions=SESSIONS)
    take_no_more(monkeypatch)
    for begun in range(400):
        session = residence.create([chance.randrange(96) for _ in range(1 + begun % 100)], seed=begun)
        begin_decode(residence, session, DecodeRequest(1 + begun % 40))
        if begun % 2 and len(residence.infos()) < SESSIONS:
            residence.fork(session.id)
        for _ in range(chance.randrange(4)):
            residence.tick()
        if begun % 3 == 0:
            residence.cancel(session.id)
        while len(residence.infos()) > SESSIONS - 2:
            residence.close(chance.choice(residence.infos()).id)
        if begun % 100 == 99:
            drive(residence)
            for info in residence.infos():
                residence.close(info.id)
            pages = residence.stats().pages
            assert (pages.reserved, pages.used, pages.kept + pages.free) == (0, 0, pages.total)


def test_every_planned_session_filled_to_the_last_token_decodes(
    tiny_file: MakeFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A07. And nothing is compiled, captured or allocated once a worker is ready: no width is a first."""
    with opened(tiny_file(WEIGHT_TYPES[2]), replace(ON_GPU, sessions=256)) as engine:
        take_no_more(monkeypatch)
        residence = Residence(engine, context_tokens=CONTEXT, sessions=256)
        prompts = [[(seed + 7 * i) % 96 for i in range(CONTEXT - 1 - seed % 60)] for seed in range(256)]
        sessions = [residence.create(prompt, seed=seed, sampling=WARM) for seed, prompt in enumerate(prompts)]
        with pytest.raises(NoRoom):
            residence.create([1])
        drive(residence)
        listeners = [begin_decode(residence, session, DecodeRequest()) for session in sessions]
        drive(residence)
        assert {len(prompt) + len(told.tokens) for prompt, told in zip(prompts, listeners, strict=True)} == {CONTEXT}
        for seed in (0, 59, 255):
            assert listeners[seed].tokens == lone(engine, prompts[seed], seed, WARM, DecodeRequest())
