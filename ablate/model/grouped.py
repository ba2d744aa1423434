"""One product for many matrices: rows that stand sorted by group, each group with a matrix of its own.

PyTorch's grouped_mm is that operator, but it takes no float64, cannot be traced in float32, and is unknown to the counter of FLOPs.
As an operator of our own it compiles without a break, runs on the meta device and is counted.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import register_flop_formula

_ALIGNMENT = 16
"""Bytes of which the address and the rows of each matrix must be a multiple for grouped_mm."""
_CAPABILITY = (8, 0)
"""Of the first NVIDIA devices that have it."""


def grouped_product(x_RI: Tensor, matrix_GIO: Tensor, ends_G: Tensor) -> Tensor:
    """y[r] = x[r] @ matrix[g] for the rows r of group g, which end before `ends[g]` (int32); float32 and bfloat16, any device."""
    return _rows_by_matrices(x_RI, matrix_GIO, ends_G)


@torch.library.custom_op("ablate::rows_by_matrices", mutates_args=())
def _rows_by_matrices(x_RI: Tensor, matrix_GIO: Tensor, ends_G: Tensor) -> Tensor:
    if _native(x_RI, matrix_GIO):
        return F.grouped_mm(x_RI.contiguous(), matrix_GIO, offs=ends_G)
    bounds = [0, *ends_G.tolist()]
    return torch.cat([x_RI[start:end] @ matrix for (start, end), matrix in zip(pairwise(bounds), matrix_GIO, strict=True)])


@torch.library.custom_op("ablate::outer_of_rows", mutates_args=())
def _outer_of_rows(a_RI: Tensor, b_RO: Tensor, ends_G: Tensor) -> Tensor:
    """a^T b over the rows of each group: the gradient of its matrix."""
    if _native(a_RI, b_RO):
        return F.grouped_mm(a_RI.contiguous().transpose(0, 1), b_RO.contiguous(), offs=ends_G)
    bounds = [0, *ends_G.tolist()]
    return torch.stack([a_RI[start:end].T @ b_RO[start:end] for start, end in pairwise(bounds)])


def _native(x: Tensor, y: Tensor) -> bool:
    """Whether PyTorch's operator takes these; 2.9 has none, none takes float64."""
    known = hasattr(F, "grouped_mm") and x.dtype in (torch.float32, torch.bfloat16)
    able = x.device.type == "cpu" or (x.is_cuda and torch.cuda.get_device_capability(x.device) >= _CAPABILITY)
    sizes = [x.shape[-1], *y.shape[1:]]
    aligned = (
        all(size * x.element_size() % _ALIGNMENT == 0 for size in sizes) and x.data_ptr() % _ALIGNMENT == y.data_ptr() % _ALIGNMENT == 0
    )
    return known and able and aligned


@_rows_by_matrices.register_fake
def _(x_RI: Tensor, matrix_GIO: Tensor, ends_G: Tensor) -> Tensor:
    return x_RI.new_empty(x_RI.shape[0], matrix_GIO.shape[2])


@_outer_of_rows.register_fake
def _(a_RI: Tensor, b_RO: Tensor, ends_G: Tensor) -> Tensor:
    return a_RI.new_empty(ends_G.shape[0], a_RI.shape[1], b_RO.shape[1])


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient_RO: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    x_RI, matrix_GIO, ends_G = ctx.saved_tensors
    need_x, need_matrix, _ = ctx.needs_input_grad
    x = _rows_by_matrices(gradient_RO, matrix_GIO.transpose(1, 2), ends_G) if need_x else None
    # In the layout of a weight (G, O, I): the gradient of the transposed view needs no copy.
    matrix = _outer_of_rows(gradient_RO, x_RI, ends_G).transpose(1, 2) if need_matrix else None
    return x, matrix, None


_rows_by_matrices.register_autograd(_backward, setup_context=_save)


@register_flop_formula(cast(Any, torch.ops.ablate.rows_by_matrices))
def _flops_of_product(x: Any, matrix: Any, ends: Any, out_shape: Any = None, **kwargs: Any) -> int:
    return int(2 * x[0] * matrix[1] * matrix[2])


@register_flop_formula(cast(Any, torch.ops.ablate.outer_of_rows))
def _flops_of_outer(a: Any, b: Any, ends: Any, out_shape: Any = None, **kwargs: Any) -> int:
    return int(2 * a[0] * a[1] * b[1])
