"""plan: every run that a study needs now, composed, checked, built without numbers and compared with what is there, before any job starts.

A plan is a function of the study and of the run directories, so that asking again is how a study goes on: what is done is not run
again, and the second stage appears once the first has ended.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ablate.claim import read_status
from ablate.config import Config, meta_model
from ablate.data import Dataset
from ablate.errors import ConfigError, Problem
from ablate.files import read_object
from ablate.model.count import Counts, count
from ablate.runs import canonical, find_run, run_hash, slug
from ablate.sweep.arms import Arm, Arms, axes_of, match_overrides, overrides_of
from ablate.sweep.composer import Composer
from ablate.sweep.designs import arms_of
from ablate.sweep.study import Study, over
from ablate.sweep.tuning import Tuned, tune
from ablate.train.launch import data_of

Stage = Literal["tune", "confirm", "budget"]

BUDGET_BLOCKS = 2
"""Blocks in which the baseline is trained on other numbers of tokens."""

ENDED = ("done", "failed")
"""States of a run that has a result: a failure is an outcome too."""


@dataclass(frozen=True)
class Cell:
    """One run that the study needs."""

    digest: str
    directory: Path
    arm: str
    stage: Stage
    rate: float  # learning rate
    seed: int
    overrides: tuple[str, ...]  # the whole command line
    cfg: Config
    share: float = 1.0  # of the training tokens of the other runs


class Cost(NamedTuple):
    """Of one run of an arm."""

    parameters: int
    flops: float  # of training
    active_parameters: int  # those that work on one token
    training_flops_per_token: float
    kv_bytes_per_token: int  # of a cache in bfloat16


@dataclass
class Plan:
    """What is to be run, in the order in which it is submitted."""

    study: Study
    arms: Arms
    cells: list[Cell]
    states: dict[str, str]  # hash -> state of its directory
    costs: dict[str, Cost]  # arm -> of one run
    tuned: dict[str, Tuned]  # arm -> what its tuning says so far; empty without tuning
    duplicates: list[tuple[str, str]] = field(default_factory=list)  # arms whose configs are the same
    later: int = 0  # runs of stages whose learning rate is not known yet

    def of_stage(self, stage: Stage) -> list[Cell]:
        return [cell for cell in self.cells if cell.stage == stage]

    def counts(self) -> Counter[str]:
        return Counter(self.states[cell.digest] for cell in self.cells)

    def unfinished(self) -> list[Cell]:
        """Cells without a result."""
        return [cell for cell in self.cells if self.states[cell.digest] not in ENDED]

    @property
    def complete(self) -> bool:
        return not self.later and not self.unfinished()


class Planner:
    """Makes the plans of one study; what does not change between them is kept."""

    def __init__(
        self, study: Study, composer: Composer, common: Sequence[str], say: Callable[[str], None], config_dir: str | None = None
    ) -> None:
        """`common`: overrides that hold for every run and move no number of it (results_dir, tracker)."""
        self.study, self._composer, self._say = study, composer, say
        self._base = over(study.set, common)
        self._datasets: dict[str, Dataset] = {}
        self._made: dict[tuple[Any, ...], Cell] = {}
        self._costs: dict[str, Cost] = {}
        for cell in diagonal(axes_of(study)):  # Hydra composes a choice of every axis at once
            composer.refused(over(self._base, overrides_of(cell)))
        self.arms = arms_of(study, lambda overrides: composer.refused(over(common, overrides)), config_dir)
        self._match = match_overrides(study, self.arms.arms[0])
        self._check_matched()

    def _check_matched(self) -> None:
        """Every arm can be made as large as the baseline."""
        problems = []
        for arm in self.arms.arms if self._match else ():
            try:
                self._composer.config(self._overrides(arm))
            except ConfigError as error:
                problems += [Problem(f"{arm.name}: {problem.key}", problem.message) for problem in error.problems]
        if problems:
            raise ConfigError(problems)

    @property
    def first(self) -> Config:
        """The config of the first arm, for what all runs have in common."""
        return self._composer.config(self._overrides(self.arms.arms[0]))

    def _overrides(self, arm: Arm, *more: str) -> list[str]:
        """The whole command line of an arm."""
        return over(self._base, [*arm.overrides, *self._match, *more])

    def plan(self) -> Plan:
        """The runs that are needed now, and their states."""
        tuned: dict[str, Tuned] = {}
        cells: list[Cell] = []
        later = 0
        for arm in self.arms.arms:
            rate = None
            if self.study.tuning is not None:
                tuned[arm.name] = self._tune(arm)
                rate = tuned[arm.name].best
                cells += self._tuning_cells(arm, tuned[arm.name].rates)
                if rate is None:
                    later += len(self.study.blocks) + len(list(self._budgets(arm)))
                    continue
            cells += self._confirm(arm, rate)
            cells += [self._cell(arm, "budget", rate, seed, share) for share, seed in self._budgets(arm)]
        order = {"tune": 0, "confirm": 1, "budget": 2}
        cells.sort(key=lambda cell: (order[cell.stage], self._place_of_seed(cell)))  # whole blocks first: pairs come early
        unique = {cell.digest: cell for cell in reversed(cells)}
        kept = [cell for cell in cells if unique[cell.digest] is cell]
        return Plan(
            study=self.study,
            arms=self.arms,
            cells=kept,
            states={cell.digest: state_of(cell.directory) for cell in kept},
            costs={arm.name: self._cost(arm) for arm in self.arms.arms},
            tuned=tuned,
            duplicates=[(cell.arm, unique[cell.digest].arm) for cell in cells if unique[cell.digest] is not cell],
            later=later,
        )

    def _place_of_seed(self, cell: Cell) -> int:
        arm = next(arm for arm in self.arms.arms if arm.name == cell.arm)
        seeds = self.study.tuning.seeds if cell.stage == "tune" and self.study.tuning else self.study.blocks
        return seeds.index(cell.seed - arm.seed_offset)

    def _confirm(self, arm: Arm, rate: float | None) -> list[Cell]:
        return [self._cell(arm, "confirm", rate, seed + arm.seed_offset) for seed in self.study.blocks]

    def _budgets(self, arm: Arm) -> Iterator[tuple[float, int]]:
        """Shares of the training tokens and seeds on which an arm is trained as well: the baseline alone."""
        if arm.name == self.arms.baseline:
            yield from itertools.product(self.study.budgets, self.study.blocks[:BUDGET_BLOCKS])

    def _tuning_cells(self, arm: Arm, rates: Sequence[float]) -> list[Cell]:
        assert self.study.tuning is not None
        return [self._cell(arm, "tune", rate, seed + arm.seed_offset) for rate in rates for seed in self.study.tuning.seeds]

    def _tune(self, arm: Arm) -> Tuned:
        tuning = self.study.tuning
        assert tuning is not None
        losses: dict[float, list[float | None]] = {}
        while True:
            tuned = tune(tuning.lr, tuning.extend, losses)
            new = [rate for rate in tuned.rates if rate not in losses]
            if not new:
                return tuned
            for rate in new:
                losses[rate] = [self._capped_loss(self._cell(arm, "tune", rate, seed + arm.seed_offset)) for seed in tuning.seeds]

    def _capped_loss(self, cell: Cell) -> float | None:
        """min(loss, cap) of a run that has ended; the cap is the entropy of token frequencies."""
        cap = self.data(cell.cfg).unigram_entropy
        state = state_of(cell.directory)
        if state == "failed":
            return cap
        loss = read_object(cell.directory / "summary.json").get("eval_loss") if state == "done" else None
        return min(float(loss), cap) if isinstance(loss, int | float) else None

    def _cell(self, arm: Arm, stage: Stage, rate: float | None, seed: int, share: float = 1.0) -> Cell:
        key = (arm.name, stage, rate, seed, share)
        if key not in self._made:
            own = [f"optim.lr={rate!r}"] if rate is not None else []
            if share != 1:
                own.append(f"train.tokens={round(share * self._composer.config(self._overrides(arm)).train.tokens)}")
            overrides = self._overrides(arm, *own, f"seed={seed}")
            cfg = self._composer.config(overrides)
            identity = canonical(cfg, self.data(cfg).content_hash)
            digest = run_hash(identity)
            name = f"{slug(cfg, self._composer.config([f'arch={cfg.arch}']))}-{digest}"
            directory = find_run(cfg.results_dir, digest) or Path(cfg.results_dir).expanduser() / "runs" / name
            used = cfg.optim.model_dump()["lr"]
            self._made[key] = Cell(digest, directory.absolute(), arm.name, stage, used, seed, tuple(overrides), cfg, share)
        return self._made[key]

    def data(self, cfg: Config) -> Dataset:
        """The data of a config, prepared now so that no job has to, and so that the plan knows each run by what it learns from."""
        key = repr((cfg.data, cfg.tokenizer, cfg.eval.bytes, cfg.eval.segment_bytes))
        if key not in self._datasets:
            self._datasets[key] = data_of(cfg, self._say)
        return self._datasets[key]

    def content_hash(self, cfg: Config) -> str:
        return self.data(cfg).content_hash

    def _cost(self, arm: Arm) -> Cost:
        if arm.name not in self._costs:
            cfg = self._composer.config(self._overrides(arm, f"seed={self.study.blocks[0] + arm.seed_offset}"))
            counts: Counts = count(meta_model(cfg), cfg.model.context)
            self._costs[arm.name] = Cost(
                counts.parameters,
                counts.training_flops_per_token * cfg.steps * cfg.batch_tokens,
                counts.active,
                counts.training_flops_per_token,
                counts.kv_bytes_per_token(),
            )
        return self._costs[arm.name]


def diagonal(axes: Mapping[str, Sequence[str]]) -> Iterator[dict[str, str]]:
    """As few cells of a grid as have all its values."""
    for index in range(max(map(len, axes.values()), default=0)):
        yield {key: values[min(index, len(values) - 1)] for key, values in axes.items()}


def state_of(directory: Path) -> str:
    """What a run's directory says: new, done, failed, running, stopped, crashed, or interrupted (killed while it ran)."""
    return str(read_status(directory).get("state", "new"))


def check_arms(plan: Plan) -> None:
    """Two arms that are one config would be one run with two labels."""
    seen: dict[str, str] = {}
    problems: list[str] = []
    for cell in plan.cells:
        seen.setdefault(cell.digest, cell.arm)
    for arm, same in dict.fromkeys(plan.duplicates):
        if arm != same:
            problems.append(f"{arm} is the same configuration as {same}")
    if problems and plan.study.design != "grid":
        raise ConfigError.at("arms", "; ".join(problems))
