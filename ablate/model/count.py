"""count: parameters, FLOPs and cache bytes, counted from the built model. No formula of an architecture is written here."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ablate.model.ffn import FeedForward
from ablate.model.residual import Block
from ablate.model.transformer import Transformer


@dataclass(frozen=True)
class Counts:
    """`active` is what works on one token. FLOPs are of the forward pass; training takes three times as many (arXiv 2001.08361,
    section 2.1). Attention is counted over the whole square, as in arXiv 2204.02311, appendix B, though half of it is masked."""

    parameters: int
    embedding: int
    active: int
    flops_per_token: float
    training_flops_per_token: float
    kv_elements_per_token: int
    kv_elements: int
    ffn_width: int
    ffn_parameter_error: float

    def kv_bytes(self, bytes_per_element: int = 2) -> int:
        """Of the cache of a whole context, of which a layer with a window or chunks keeps no more than that."""
        return self.kv_elements * bytes_per_element

    def kv_bytes_per_token(self, bytes_per_element: int = 2) -> int:
        """Of a cache in bfloat16, unless told otherwise."""
        return self.kv_elements_per_token * bytes_per_element


def parameters(model: Transformer) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def active_parameters(model: Transformer) -> int:
    """Those that work on one token."""
    return parameters(model) - sum(module.inactive_parameters for module in model.modules() if isinstance(module, FeedForward))


def flops(call: Callable[[Tensor], object], tokens_BT: Tensor) -> int:
    """FLOPs of the matrix products of a call."""
    # Plain operators: the counter does not know the fused attention of every device, and would count it as nothing.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounter() as counter:  # type: ignore[no-untyped-call]
        call(tokens_BT)
    return counter.total


class _Made(NamedTuple):
    """What an operator makes of shapes."""

    shapes: list[tuple[torch.Size, tuple[int, ...], torch.dtype]]
    several: bool  # a tuple of tensors
    flops: int


class FlopCounter(TorchDispatchMode):
    """What torch's FlopCounterMode counts, by torch's formulas, and for the plan of a hundred models in a fraction of its time.

    On the meta device all time goes to Python of torch that finds out shapes, up to some milliseconds an operator. It has only shapes to
    find them from: what it found once holds for every model.
    """

    known: ClassVar[dict[Hashable, _Made]] = {}
    """By operator and arguments, tensors by their shapes."""
    total: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        key = (func, _shapes(args), _shapes(tuple(kwargs.items())))
        if key in self.known:
            shapes, several, flops = self.known[key]
            self.total += flops
            made = tuple(torch.empty_strided(size, stride, dtype=dtype, device="meta") for size, stride, dtype in shapes)
            return made if several else made[0]
        out = func(*args, **kwargs)
        formula = flop_registry.get(func._overloadpacket)
        flops = formula(*args, **kwargs, out_val=out) if formula else 0
        self.total += flops
        aliases = any(argument.alias_info is not None for argument in func._schema.arguments)  # a view, or written in place
        made = out if isinstance(out, tuple) else (out,)
        if not aliases and all(type(tensor) is Tensor and tensor.is_meta for tensor in made):
            self.known[key] = _Made([(tensor.shape, tensor.stride(), tensor.dtype) for tensor in made], made is out, flops)
        return out


def _shapes(value: Any) -> Hashable:
    """What the meta device knows of an argument."""
    if isinstance(value, Tensor):
        return (value.shape, value.stride(), value.dtype) if value.is_meta else object()  # numbers: never the same as others
    if isinstance(value, list | tuple):
        return tuple(map(_shapes, value))
    return type(value), value  # 1, 1.0 and True are equal, and make other types


def count(model: Transformer, context: int) -> Counts:
    """Counts a model; one on the meta device costs no memory. FLOPs are those of a sequence of `context` tokens."""
    tokens = torch.zeros(1, context, dtype=torch.long, device=model.embedding.table.weight.device)
    forward = flops(model, tokens)
    ffns: list[FeedForward] = [module.ffn.sublayer for module in model.blocks if isinstance(module, Block)]
    return Counts(
        parameters=parameters(model),
        embedding=sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Embedding)),
        active=active_parameters(model),
        flops_per_token=forward / context,
        training_flops_per_token=3 * (flops(model.run, tokens) if len(model.future) else forward) / context,
        kv_elements=sum(layer.kv_elements_per_token * layer.reach.tokens(context) for layer in model.attentions),
        kv_elements_per_token=sum(layer.kv_elements_per_token for layer in model.attentions),
        ffn_width=ffns[0].width,
        ffn_parameter_error=sum(f.parameter_error * f.target_parameters for f in ffns) / sum(f.target_parameters for f in ffns),
    )
