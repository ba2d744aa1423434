"""The training loop, from a config to a run directory with a result. It reads as one would tell it."""

from __future__ import annotations

import hashlib
import math
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.optim import Optimizer

from ablate.claim import ClaimLost
from ablate.config import Config, build_model, meta_model
from ablate.data import Dataset
from ablate.data.batches import Batches
from ablate.environment import DTYPES, matmul_peak
from ablate.errors import ConfigError
from ablate.files import write_json
from ablate.matching import MATCH
from ablate.model.count import Counts, count
from ablate.model.dropout import DROPOUT
from ablate.model.init import INIT
from ablate.model.moe import update_selection_bias
from ablate.model.transformer import Transformer
from ablate.runs import Run
from ablate.train import checkpoint
from ablate.train.curves import length_extrapolation, loss_by_position
from ablate.train.distributed import ALONE, World, rows_at_once
from ablate.train.evaluate import Evaluation, evaluate
from ablate.train.loss import LOSS, Parts
from ablate.train.optim import OPTIM
from ablate.train.parallel import Objective, Parallel, parallel_of
from ablate.train.probes import NoProbe, Probe, is_due
from ablate.train.schedule import SCHEDULE, Schedule

COMPILE_PAYS_FROM_FLOPS = {"cpu": 5e13, "cuda": 5e15}
"""Training FLOPs from which compiling earns its minute back: some ten minutes of two cores, some two of a large GPU."""

CHECKPOINT = "checkpoint.pt"
STILL_FALLING = 0.01
"""Nats over a tenth of the run."""

Ending = Literal["done", "failed", "stopped"]


class Stop:
    """SIGTERM, SIGUSR2 and Ctrl-C ask a run to finish its step, save and leave; a second Ctrl-C ends it at once."""

    def __init__(self) -> None:
        self.signal: str | None = None

    def listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.signal:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number).name


@dataclass
class Training:
    """What trains: built once, then changed step by step."""

    cfg: Config
    device: torch.device
    model: Transformer
    counts: Counts
    compiled: bool
    peak_flops: float  # per second, of a matrix product of this dtype, measured here; of all processes
    world: World
    parallel: Parallel
    objective: nn.Module  # the model and its loss
    rows: int  # sequences in one forward pass of this process
    lr: float  # the peak rate, of all optimisers
    optimizers: list[Optimizer]
    schedule: Schedule
    batches: Batches
    data: Dataset
    drops: bool  # dropout is on while it trains
    step: int = 0
    seconds: float = 0.0  # spent in steps, over all starts
    mark: tuple[int, float] = (0, math.inf)  # an evaluation at least a tenth of the run ago: its step and loss


@dataclass(frozen=True)
class Update:
    """What one step gives for the screen."""

    step: int
    loss: float
    tokens_per_second: float
    evaluation: Evaluation | None


@dataclass(frozen=True)
class Wishes:
    """What all processes have agreed to do after a step: save, and stop for a signal."""

    save: bool
    stop: str | None


def build(cfg: Config, data: Dataset, world: World = ALONE) -> Training:
    """Model, optimiser and batches on their device, at step 0."""
    device = find_device(cfg, world)
    if cfg.threads:
        torch.set_num_threads(cfg.threads)
    counts = count(meta_model(cfg), cfg.model.context)
    model, parallel = build_model(cfg), parallel_of(cfg.parallel, world)
    rows = rows_at_once(cfg, model, world)
    compiled = should_compile(cfg, device, counts)
    parallel.place(model, device, compiled)
    loss = LOSS.build(cfg.loss)
    objective = Objective(model, torch.compile(loss.__call__, fullgraph=True, dynamic=False) if compiled else loss)
    optim = OPTIM.build(cfg.optim)
    training = Training(
        cfg=cfg,
        device=device,
        model=model,
        counts=counts,
        compiled=compiled,
        peak_flops=world.total(matmul_peak(device, DTYPES[cfg.dtype]))[0],
        world=world,
        parallel=parallel,
        objective=parallel.wrapped(objective),
        rows=rows,
        lr=optim.lr,
        optimizers=optim.optimizers(model, INIT.build(cfg.init)),
        schedule=SCHEDULE.build(cfg.schedule),
        batches=Batches(data.train, context=cfg.model.context, batch_size=cfg.train.batch_size, data_seed=cfg.data_seed),
        data=data,
        drops=DROPOUT.build(cfg.dropout).active,
    )
    parallel.settle(lambda: any_loss(training))
    return training


def any_loss(training: Training) -> Tensor:
    """The loss of a made-up batch, of the shape of all others."""
    zeros_BT = torch.zeros(training.rows, training.cfg.model.context, dtype=torch.int64, device=training.device)
    with autocast(training):
        total: Tensor = training.objective(zeros_BT, zeros_BT)[0]
    return total


def find_device(cfg: Config, world: World = ALONE) -> torch.device:
    """The device of this process: of several on one machine each has its own GPU, or sees but one."""
    if cfg.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError.at("device", "cuda was asked for, and PyTorch finds no CUDA device; allowed here: cpu, auto")
    if cfg.device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    if world.size == 1:
        return torch.device("cuda")
    found = torch.cuda.device_count()
    if 1 < found <= world.local_rank:
        message = f"none for process {world.local_rank} of this machine: PyTorch finds {found}; start at most so many, or device=cpu"
        raise ConfigError.at("device", message)
    return torch.device("cuda", world.local_rank if found > 1 else 0)


def should_compile(cfg: Config, device: torch.device, counts: Counts) -> bool:
    """`auto` decides from the work of the run alone, so that a resumed run decides alike."""
    able = device.type != "cpu" or shutil.which("g++") is not None or shutil.which("clang++") is not None
    if cfg.compile is True and not able:
        raise ConfigError.at("compile", "needs a C++ compiler (g++ or clang++) on a CPU, and none is on the PATH")
    flops = counts.training_flops_per_token * cfg.steps * cfg.batch_tokens
    return able and (cfg.compile is True or (cfg.compile == "auto" and flops >= COMPILE_PAYS_FROM_FLOPS[device.type]))


def restore(training: Training, run: Run) -> None:
    """Goes back to the run's checkpoint, if it has one, and opens its metrics there."""
    path = run.directory / CHECKPOINT
    if training.world.from_first(path.exists):
        training.step, facts = checkpoint.load(path, model=training.model, optimizers=training.optimizers, parallel=training.parallel)
        training.seconds, training.mark = facts["seconds"], tuple(facts["mark"])
    newest, oldest = training.world.largest(training.step, -training.step)
    if newest != -oldest:
        raise ConfigError.at(str(path), "is not the same file for all processes: results_dir must be a folder that they share")
    run.open_metrics(training.step)


def run_steps(training: Training, run: Run, stop: Stop) -> Iterator[Update]:
    """Trains to the end, or to a stop or failure, and leaves the run directory in the state it says. Yields after every step."""
    cfg = training.cfg
    path = run.directory / CHECKPOINT
    saved, evaluation = time.monotonic(), None
    while training.step < cfg.steps:
        row = train_step(training)
        wishes = agreed(training, run, stop, saved)
        run.log(row)
        if not math.isfinite(row["loss"]) or not math.isfinite(row["grad_norm"]):
            detail = f"loss {row['loss']}, gradient norm {row['grad_norm']} at step {training.step}"
            end(training, run, "failed", reason="non-finite", detail=detail)
            return
        evaluation = None
        if training.step in evaluation_steps(cfg):
            evaluation = evaluate_now(training)
            run.log(evaluation_row(training, evaluation))
            if collapsed(training, evaluation):
                detail = (
                    f"evaluation loss {evaluation.loss:.4f} at step {training.step} is not below the unigram entropy "
                    f"{training.data.unigram_entropy:.4f}: no better than token frequencies, by collapse or by too short a run"
                )
                end(training, run, "failed", reason="collapsed", detail=detail)
                return
            wishes = agreed(training, run, stop, saved)
        if wishes.save:
            save(training, path)
            saved = time.monotonic()
        yield Update(training.step, row["loss"], row["tokens_per_second"], evaluation)
        if wishes.stop and training.step < cfg.steps:
            end(training, run, "stopped", reason=wishes.stop, detail="the same command goes on from here")
            return
    agreed(training, run, stop, saved)
    finish(training, run, evaluation or evaluate_now(training))  # a checkpoint of the last step needs it again


def agreed(training: Training, run: Run, stop: Stop, saved: float) -> Wishes:
    """What all processes do next: what one of them was asked, or the first has lost, counts for all. `saved`: when, by this clock."""
    lost: ClaimLost | None = None
    try:
        run.check_owned()
    except ClaimLost as error:
        lost = error
    due = time.monotonic() - saved > training.cfg.checkpoint.every_seconds
    number, save, gone = training.world.largest(signal.Signals[stop.signal] if stop.signal else 0, due, lost is not None)
    if gone:
        raise lost or ClaimLost("another process took this run over")
    return Wishes(save=bool(number or save), stop=signal.Signals(int(number)).name if number else None)


def finish(training: Training, run: Run, evaluation: Evaluation) -> None:
    """The result on disk, then the weights, then what may be long: nothing that comes after may cost the result."""
    result = summary(training, evaluation)
    weights = training.parallel.collected(training.model.state_dict())
    if training.world.first:
        write_json(run.directory / "summary.json", result)
        if training.cfg.checkpoint.keep_final:
            try:
                checkpoint.save_weights(run.directory / "model.safetensors", weights)
            except (OSError, SafetensorError) as error:
                run.note(f"warning: the weights could not be kept: {error}")
    by_position = position_curves(training)
    if training.world.first:
        extrapolation = length_extrapolation(training.cfg, weights, training.data.eval_set, training.device, training.cfg.eval.extend)
        write_json(run.directory / "summary.json", {**result, **by_position, "length_extrapolation": extrapolation})
        end(training, run, "done")
        (run.directory / CHECKPOINT).unlink(missing_ok=True)


def train_step(training: Training) -> dict[str, float]:
    """One update: batch, forward, backward, clip, step. The row it gives has cross-entropy as `loss`, in nats per token."""
    cfg, start = training.cfg, time.perf_counter()
    inputs_BT, targets_BT = training.batches(training.step)
    probe = probe_of(training)
    parts, loads = gradients(training, inputs_BT, targets_BT)
    probe.before_update(inputs_BT)
    grad_norm = training.parallel.clip(list(training.model.parameters()), cfg.train.grad_clip)
    lr = training.lr * training.schedule.factor(training.step, cfg.steps)
    for optimizer in training.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = lr * group["rate"]
        training.parallel.step(optimizer)
        optimizer.zero_grad(set_to_none=True)
    update_selection_bias(training.model, loads)
    probe.after_update(loads)
    losses = {name: value.item() for name, value in parts.items()}
    seen = probe.row()
    training.step += 1
    seconds = time.perf_counter() - start - probe.seconds
    training.seconds += seconds
    return {
        "step": training.step,
        "tokens": training.step * cfg.batch_tokens,
        "loss": losses.pop("cross_entropy"),
        **losses,
        "grad_norm": grad_norm.item(),
        "lr": lr,
        "seconds": seconds,
        "tokens_per_second": cfg.batch_tokens / seconds,
        "flop_utilisation": utilisation(training, cfg.batch_tokens / seconds),
        **seen,
    }


def probe_of(training: Training) -> NoProbe:
    """What looks at the next step: nothing, but for each `probes.every_steps`-th."""
    looks = training.world.first or training.parallel.probed_by_all
    if not looks or not is_due(training.step + 1, training.cfg.probes.every_steps, training.cfg.steps):
        return NoProbe()
    return Probe(training.model, training.device, lambda: autocast(training), training.parallel)


def gradients(training: Training, inputs_BT: Tensor, targets_BT: Tensor) -> tuple[Parts, list[Tensor]]:
    """Forward and backward, in micro-batches that processes share; gives the parts of the loss, and the load of each router, of all."""
    world, share = training.world, training.rows / len(inputs_BT)
    passes = list(world.share(list(zip(inputs_BT.split(training.rows), targets_BT.split(training.rows), strict=True))))
    parts: Parts = {}
    loads: list[list[Tensor]] = []
    for place, (inputs, targets) in passes:
        if training.drops:  # so that a resumed run drops the same, and so does one of several processes
            torch.manual_seed(step_seed(training.cfg.init_seed, training.step, place))
        with training.parallel.accumulating(last=place == passes[-1][0]):
            with autocast(training):
                total, found, load = training.objective(inputs.to(training.device), targets.to(training.device))
            (total * (share * world.size)).backward()  # the mean over processes is to be the sum of their shares
        parts = {name: parts.get(name, 0) + part.detach() * share for name, part in found.items()}
        loads.append(load)
    added = world.sum([*parts.values(), *(torch.stack(layer).sum(0) for layer in zip(*loads, strict=True))])
    return dict(zip(parts, added, strict=False)), added[len(parts) :]


def step_seed(seed: int, step: int, place: int) -> int:
    """A seed for the random numbers of one micro-batch of one step."""
    text = f"{seed}/step {step}/micro-batch {place}" if place else f"{seed}/step {step}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def utilisation(training: Training, tokens_per_second: float) -> float:
    """The FLOPs of the model over those of a matrix product in the same time."""
    return tokens_per_second * training.counts.training_flops_per_token / training.peak_flops


def autocast(training: Training) -> Any:
    if training.cfg.dtype == "float32":
        return nullcontext()
    return torch.autocast(training.device.type, dtype=torch.bfloat16)


def evaluation_steps(cfg: Config) -> set[int]:
    """`eval.num_points` steps, evenly spaced; the last one is the end."""
    points = min(cfg.eval.num_points, cfg.steps)
    return {round(cfg.steps * (i + 1) / points) for i in range(points)}


def evaluate_now(training: Training) -> Evaluation:
    training.model.train(not training.drops)
    try:
        with autocast(training):
            return evaluate(
                training.model,
                training.data.eval_set,
                context=training.cfg.model.context,
                batch_size=training.rows,
                device=training.device,
                grad=training.compiled,
                world=training.world,
            )
    finally:
        training.model.train()


def position_curves(training: Training) -> dict[str, Any]:
    """What the final evaluation also gives: loss by position."""
    cfg, model = training.cfg, training.model
    model.train(not training.drops)
    try:
        with autocast(training):
            by_position = loss_by_position(
                model,
                training.data.eval_set,
                context=cfg.model.context,
                batch_size=cfg.train.micro_batch_size,
                rows=training.rows,
                device=training.device,
                grad=training.compiled,
                world=training.world,
            )
    finally:
        model.train()
    return {"loss_by_position": by_position.buckets(), "loss_at_position": by_position.curve()}


def evaluation_row(training: Training, evaluation: Evaluation) -> dict[str, float | int]:
    row: dict[str, float | int] = {"step": training.step, "tokens": training.step * training.cfg.batch_tokens, "eval/loss": evaluation.loss}
    if evaluation.bits_per_byte is not None:
        row["eval/bits_per_byte"] = evaluation.bits_per_byte
    if evaluation.accuracy is not None:
        row["eval/accuracy"] = evaluation.accuracy
    return row


def collapsed(training: Training, evaluation: Evaluation) -> bool:
    """A model that predicts no better than token frequencies, and is past the time it is given to learn more.

    Before the end of the run its loss must also have stopped falling, over a tenth of the run: a slow run is not a collapsed one.
    """
    cfg, (marked_step, marked_loss) = training.cfg, training.mark
    long_enough = training.step - marked_step >= cfg.steps / 10
    if long_enough:
        training.mark = (training.step, evaluation.loss)
    if evaluation.loss < training.data.collapse_loss:
        return False
    patience = max(training.schedule.warmup_steps(cfg.steps), cfg.train.collapse_after * cfg.steps)
    return training.step == cfg.steps or (training.step > patience and long_enough and evaluation.loss > marked_loss - STILL_FALLING)


def save(training: Training, path: Path) -> None:
    checkpoint.save(
        path,
        step=training.step,
        model=training.model,
        optimizers=training.optimizers,
        facts={"seconds": training.seconds, "mark": list(training.mark)},
        parallel=training.parallel,
    )


def end(training: Training, run: Run, ending: Ending, **facts: Any) -> None:
    run.set_state(ending, step=training.step, steps=training.cfg.steps, tokens=training.step * training.cfg.batch_tokens, **facts)


def summary(training: Training, evaluation: Evaluation) -> dict[str, Any]:
    """The result of a finished run; what is not known is null."""
    cfg, tokens = training.cfg, training.step * training.cfg.batch_tokens
    return {
        "eval_loss": evaluation.loss,
        "bits_per_byte": evaluation.bits_per_byte,
        "eval_bytes": training.data.eval_set.bytes,
        "eval_tokens": evaluation.tokens,
        **({} if evaluation.accuracy is None else {"eval_accuracy": evaluation.accuracy}),
        "steps": training.step,
        "tokens": tokens,
        "epochs": training.batches.epochs(training.step),
        "seconds": training.seconds,
        "tokens_per_second": tokens / training.seconds,
        "flop_utilisation": utilisation(training, tokens / training.seconds),
        "parameters": training.counts.parameters,
        "training_flops": training.counts.training_flops_per_token * tokens,
        "ffn_parameter_error": training.counts.ffn_parameter_error,
        "match": achieved.model_dump() if (achieved := MATCH.build(cfg.match).achieved) else None,
        "compiled": training.compiled,
        "unigram_entropy": training.data.unigram_entropy,
        "init_seed": cfg.init_seed,
        "data_seed": cfg.data_seed,
    }
