"""From a model file to engines and tokens, for commands. Import it late: it brings the engine with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from decodepool_sizing.capacity import CapacityPlan
from decodepool_sizing.errors import BadModelFile
from decodepool_sizing.readers import file_reader
from decodepool_worker.engine.open import Loaded, ModelFile, Wanted, assemble, plan_worker, read_model, usable_cores
from decodepool_worker.text.errors import BadTokenizer, NoTokenizer
from decodepool_worker.text.tokenizer import Tokenizer
from decodepool_worker.weights.loader import LoadedWeights, load_weights

from decodepool_cli.faults import bad_input
from decodepool_cli.loading import progress_bar
from decodepool_cli.model import Model

Planner = Callable[[ModelFile], CapacityPlan]


@dataclass(frozen=True)
class Weighed:
    """A model whose weights are in memory, and the plan for its engines."""

    model: ModelFile
    plan: CapacityPlan
    weights: LoadedWeights

    def engine(self, threads: int | None = None) -> Loaded:
        """Return an engine on these weights; all cores where no number of threads is given."""
        return assemble(self.model, self.weights, self.plan, threads or usable_cores())


def wanted_plan(wanted: Wanted) -> Planner:
    """Return the planner of what is wanted."""
    return lambda model: plan_worker(model, wanted)


def load(file: Path, planner: Planner) -> Weighed:
    """Plan, then load. A fault of the file is bad input, and names the file; CannotFit as `plan_worker` raises it."""
    try:
        with file_reader(file) as reader, progress_bar(file.name) as progress:
            model = read_model(reader)
            plan = planner(model)
            weights = load_weights(reader, model.header, model.shape, threads=usable_cores(), progress=progress)
    except BadModelFile as error:
        raise bad_input(f"{file}: {error}") from None
    return Weighed(model, plan, weights)


def tokenizer_of(model: Model) -> Tokenizer:
    """Return a model's tokenizer; bad input where the file has none, or a broken one."""
    try:
        tokenizer = Tokenizer.from_metadata(model.header.metadata)
    except BadTokenizer as error:
        raise bad_input(f"{model.source}: {error}") from None
    if tokenizer.vocabulary is None:
        raise bad_input(f"{model.source}: {NoTokenizer()}")
    return tokenizer
