"""parallel: how several processes hold one model. `ddp`: each has all of it; `fsdp`: each has a part of every tensor.

Gradients of a step are the same mean over the batch either way, and a checkpoint is the file that one process writes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Muon, Optimizer

from ablate.model.transformer import Outputs, Transformer
from ablate.train.distributed import World
from ablate.train.loss import Parts


class Objective(nn.Module):
    """inputs_BT, targets_BT -> what is minimised, its parts by name, and the load_E of each router."""

    def __init__(self, model: Transformer, loss: Callable[[Outputs, Tensor], tuple[Tensor, Parts]]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, inputs_BT: Tensor, targets_BT: Tensor) -> tuple[Tensor, Parts, list[Tensor]]:
        outputs = self.model.run(inputs_BT)
        total, parts = self.loss(outputs, targets_BT)
        return total, parts, [stats.load_E for stats in outputs.found]


class Parallel:
    """One process with the whole model."""

    probed_by_all = False
    """A look at the model takes all processes."""

    def __init__(self, world: World) -> None:
        self.world = world

    def place(self, model: Transformer, device: torch.device, compiled: bool) -> None:
        """Brings the model to the device, this process's part of it, and compiles it."""
        model.to(device)
        if compiled:
            model.compile_blocks()

    def wrapped(self, objective: Objective) -> nn.Module:
        """What is called for gradients."""
        return objective

    def settle(self, loss: Callable[[], Tensor]) -> None:
        """Before the first step of a process: what depends on how many there were is chosen. `loss` gives any loss of the model."""

    def accumulating(self, last: bool) -> AbstractContextManager[None]:
        """Around the micro-batches of a step: only with the last one are gradients averaged over processes."""
        return nullcontext()

    def norm(self, tensors: Sequence[Tensor]) -> Tensor:
        """The Euclidean norm of all their numbers, of all processes."""
        return nn.utils.get_total_norm(tensors, foreach=True)

    def clip(self, parameters: list[nn.Parameter], largest: float) -> Tensor:
        """Makes the gradient no longer than `largest`; gives the norm that it had."""
        return nn.utils.clip_grad_norm_(parameters, largest, foreach=True)

    def step(self, optimizer: Optimizer) -> None:
        """Updates this process's part of the weights."""
        optimizer.step()

    def gathered(self, model: Transformer) -> AbstractContextManager[None]:
        """In it every tensor of the model is whole."""
        return nullcontext()

    def whole(self, value: Tensor) -> Tensor:
        """A tensor of which each process may have a part; all of them must ask."""
        return value

    def collected(self, state: Any) -> Any:
        """Whole tensors, in nested mappings and lists, for the first process to write. All must ask; the others have no use of it."""
        return state

    def part(self, value: Tensor, like: Tensor) -> Tensor:
        """This process's part of a whole tensor, divided as another is."""
        return value


class Replicated(Parallel):
    """torch's DistributedDataParallel: gradients are averaged, bucket by bucket, while the backward pass goes on."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.module: nn.parallel.DistributedDataParallel | None = None

    def place(self, model: Transformer, device: torch.device, compiled: bool) -> None:
        super().place(model, device, compiled)
        if compiled:
            from torch._dynamo import config

            config.optimize_ddp = False  # blocks are compiled one by one: buckets need no cuts in them

    def wrapped(self, objective: Objective) -> nn.Module:
        wrapper: Any = nn.parallel.DistributedDataParallel
        buffers = "forward_sync_buffers" if "forward_sync_buffers" in inspect.signature(wrapper).parameters else "broadcast_buffers"
        self.module = wrapper(objective, gradient_as_bucket_view=True, **{buffers: False})  # buffers change alike in all processes
        return self.module

    def settle(self, loss: Callable[[], Tensor]) -> None:
        """DDP orders its buckets by the first backward pass, and in which order three numbers are added depends on their place in them:
        this one is not of the run, so that a resumed run has the buckets of an unbroken one."""
        assert self.module is not None
        loss().backward()
        self.module.zero_grad(set_to_none=True)

    def accumulating(self, last: bool) -> AbstractContextManager[None]:
        assert self.module is not None
        return nullcontext() if last else self.module.no_sync()


class Sharded(Parallel):
    """torch's fully_shard (FSDP2): every block is gathered for its own forward and backward pass alone.

    A parameter that is a single number is not divided: every process has it. What works on lists of tensors works on those alone.
    """

    probed_by_all = True

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.model: Any = None
        self.numbers: set[nn.Parameter] = set()

    def place(self, model: Transformer, device: torch.device, compiled: bool) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        mesh = init_device_mesh(device.type, (self.world.size,))
        self.numbers = {parameter for parameter in model.parameters() if not parameter.ndim}
        for block in [*model.blocks, *model.future]:
            fully_shard(block, mesh=mesh, ignored_params=self.numbers)
        fully_shard(model, mesh=mesh, reshard_after_forward=False, ignored_params=self.numbers)
        register_fsdp_forward_method(model, "run")
        model.to(device)
        if compiled:
            model.compile_blocks(within_hooks=True)
        self.model = model

    @contextmanager
    def accumulating(self, last: bool) -> Iterator[None]:
        self.model.set_requires_gradient_sync(last)
        yield
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter in self.numbers]
        if last and gradients:
            for gradient, mean in zip(gradients, self.world.sum(gradients), strict=True):
                gradient.copy_(mean / self.world.size)

    def norm(self, tensors: Sequence[Tensor]) -> Tensor:
        kinds = [[tensor for tensor in tensors if bool(tensor.ndim) is divided] for divided in (True, False)]
        return torch.stack([self.whole(nn.utils.get_total_norm(kind, foreach=True)) for kind in kinds if kind]).norm()

    def clip(self, parameters: list[nn.Parameter], largest: float) -> Tensor:
        norm = self.norm([parameter.grad for parameter in parameters if parameter.grad is not None])
        for kind in ([p for p in parameters if p not in self.numbers], [p for p in parameters if p in self.numbers]):
            nn.utils.clip_grads_with_norm_(kind, largest, norm, foreach=True)
        return norm

    def step(self, optimizer: Optimizer) -> None:
        parameters: list[nn.Parameter] = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        gradients = {parameter: parameter.grad for parameter in parameters if parameter.grad is not None}
        optimizer.zero_grad(set_to_none=True)
        if isinstance(optimizer, Muon):
            for parameter, gradient in gradients.items():
                self._step_whole(optimizer, parameter, gradient)
            return
        for kind in (gradients.keys() - self.numbers, gradients.keys() & self.numbers):
            for parameter in kind:
                parameter.grad = gradients[parameter]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def _step_whole(self, optimizer: Optimizer, parameter: Any, gradient: Any) -> None:
        """Muon works on whole matrices, gathered one by one. Products of parts, added up in bfloat16, would be other numbers."""
        from torch.distributed.tensor import Replicate

        whole, state = [Replicate()] * len(parameter.placements), optimizer.state[parameter]
        parameter.grad = gradient.redistribute(placements=whole)
        state.update({name: value.redistribute(placements=whole) for name, value in state.items()})
        optimizer.step()
        state.update({name: value.redistribute(placements=parameter.placements) for name, value in state.items()})
        parameter.grad = None

    @contextmanager
    def gathered(self, model: Transformer) -> Iterator[None]:
        from torch.distributed.fsdp import FSDPModule

        modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
        for module in modules:
            module.unshard()
        try:
            yield
        finally:
            for module in modules:
                module.reshard()

    def whole(self, value: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor

        return value.full_tensor() if isinstance(value, DTensor) else value

    def collected(self, state: Any) -> Any:
        if isinstance(state, Tensor):
            whole = self.whole(state)
            return whole.cpu() if self.world.first else None  # one after another: the others keep none
        if isinstance(state, Mapping):
            return {key: self.collected(value) for key, value in state.items()}
        return [self.collected(value) for value in state] if isinstance(state, list) else state

    def part(self, value: Tensor, like: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor, distribute_tensor

        if not isinstance(like, DTensor) or value.shape != like.shape:
            return value
        return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def parallel_of(word: str, world: World) -> Parallel:
    """How the processes of a run hold its model; one alone holds all of it."""
    if world.size == 1:
        return Parallel(world)
    return Sharded(world) if word == "fsdp" else Replicated(world)
