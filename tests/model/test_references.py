"""Published architectures that transformers has not, against references written from their papers: loops over heads, tokens and keys in
float64, with rotation in complex numbers. Nothing of the model is used but its weights, every one of them random."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from ablate.composition import compose
from ablate.config import Config, build_model
from tests.model.parity import LOGITS_TOLERANCE, randomise

Weights = dict[str, Tensor]
Keep = Callable[[int, int], bool]

WIDTH, HEADS, HEAD, TOKENS = 32, 4, 8, 16
SIZES = [f"model.width={WIDTH}", "model.depth=2", f"model.heads={HEADS}", f"model.context={TOKENS}", "tracker=none"]
EPS = 0.05


# --- parts, each as a paper has it


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """arXiv 1910.07467, eq. 4."""
    return x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * weight


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    """arXiv 1607.06450, eq. 4."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * weight + bias


def gelu_tanh(x: Tensor) -> Tensor:
    """arXiv 1606.08415, section 2."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def turned(x_TH: Tensor) -> Tensor:
    """Feature i and i + H/2 are one complex number; at t it is multiplied by exp(1j t 10000^(-2i/H)) (arXiv 2104.09864, eq. 12)."""
    half = x_TH.shape[-1] // 2
    number = torch.complex(x_TH[:, :half], x_TH[:, half:])
    speed = torch.tensor([10000.0 ** (-i / half) for i in range(half)], dtype=torch.float64)
    number = number * torch.exp(1j * torch.arange(len(x_TH))[:, None] * speed)
    return torch.cat([number.real, number.imag], dim=-1)


def past(t: int, s: int) -> bool:
    return s <= t


def attend(
    q_TH: Tensor, k_TH: Tensor, v_TH: Tensor, *, keep: Keep = past, bend: Callable[[Tensor], Tensor] = lambda score: score
) -> Tensor:
    """One head, one query at a time (arXiv 1706.03762, eq. 1)."""
    rows = []
    for t in range(len(q_TH)):
        seen = [s for s in range(len(k_TH)) if keep(t, s)]
        weight = torch.softmax(bend(k_TH[seen] @ q_TH[t] / math.sqrt(HEAD)), 0)
        rows.append(weight @ v_TH[seen])
    return torch.stack(rows)


class Layer:
    """The weights of one layer by their short names; a linear layer is y = x W^T + b."""

    def __init__(self, weights: Weights, layer: int) -> None:
        self.prefix, self.weights = f"blocks.{layer}.", weights

    def __getitem__(self, name: str) -> Tensor:
        return self.weights[self.prefix + name]

    def linear(self, name: str, x: Tensor) -> Tensor:
        bias = self.weights.get(f"{self.prefix}{name}.bias")
        return x @ self[f"{name}.weight"].T + (0.0 if bias is None else bias)

    def heads(self, name: str, x: Tensor) -> list[Tensor]:
        return list(self.linear(f"attention.sublayer.{name}", x).split(HEAD, dim=-1))

    def out(self, heads: list[Tensor]) -> Tensor:
        return self.linear("attention.sublayer.out", torch.cat(heads, dim=-1))

    def swiglu(self, x: Tensor) -> Tensor:
        gate, up = self.linear("ffn.sublayer.gate", x), self.linear("ffn.sublayer.up", x)
        return self.linear("ffn.sublayer.down", silu(gate) * up)

    def gpt_mlp(self, x: Tensor) -> Tensor:
        return self.linear("ffn.sublayer.down", gelu_tanh(self.linear("ffn.sublayer.up", x)))


# --- architectures


def palm(w: Weights, tokens_T: Tensor) -> Tensor:
    """Section 2: parallel layers behind one norm, one key head, SwiGLU, RoPE, no biases; section 5: logits over the root of the width."""
    x = w["embedding.table.weight"][tokens_T]
    for layer in (Layer(w, 0), Layer(w, 1)):
        y = rms_norm(x, layer["attention.input_norm.weight"])
        (k,), (v,) = layer.heads("k", y), layer.heads("v", y)
        read = [attend(turned(q), turned(k), v) for q in layer.heads("q", y)]
        x = x + layer.swiglu(y) + layer.out(read)
    return rms_norm(x, w["norm.weight"]) @ w["embedding.table.weight"].T / math.sqrt(WIDTH)


def gopher(w: Weights, tokens_T: Tensor) -> Tensor:
    """Section 3.1: GPT-2 with RMSNorm, and the scores of arXiv 1901.02860, section 3.3: (q + u) k + (q + v) W_R R."""
    x = w["embedding.table.weight"][tokens_T]
    for number in range(2):
        layer, position = Layer(w, number), f"positions.{number}."
        y = rms_norm(x, layer["attention.input_norm.weight"])
        read = []
        for head, (q, k, v) in enumerate(zip(*(layer.heads(name, y) for name in "qkv"), strict=True)):
            relative = w[position + "r.weight"].split(HEAD)[head]
            rows = []
            for t in range(TOKENS):
                scores = []
                for s in range(t + 1):
                    content = (q[t] + w[position + "u"][head]) @ k[s]
                    scores.append(content + (q[t] + w[position + "v"][head]) @ (relative @ wave(t - s)))
                rows.append(torch.softmax(torch.stack(scores) / math.sqrt(HEAD), 0) @ v[: t + 1])
            read.append(torch.stack(rows))
        x = x + layer.out(read)
        x = x + layer.gpt_mlp(rms_norm(x, layer["ffn.input_norm.weight"]))
    return rms_norm(x, w["norm.weight"]) @ w["embedding.table.weight"].T


def wave(distance: int) -> Tensor:
    """sin and cos in turn (arXiv 1706.03762, section 3.5)."""
    angles = [distance / 10000 ** (2 * i / WIDTH) for i in range(WIDTH // 2)]
    return torch.tensor([part for angle in angles for part in (math.sin(angle), math.cos(angle))], dtype=torch.float64)


def llama_block(layer: Layer, x: Tensor, norm: Callable[..., Tensor], qk: Callable[[str, Tensor], list[Tensor]]) -> Tensor:
    """Pre-norm, rotation, SwiGLU."""
    y = norm(x, layer["attention.input_norm.weight"])
    rotated = zip(qk("q", y), qk("k", y), layer.heads("v", y), strict=True)
    x = x + layer.out([attend(turned(q), turned(k), v) for q, k, v in rotated])
    return x + layer.swiglu(norm(x, layer["ffn.input_norm.weight"]))


def baichuan2(w: Weights, tokens_T: Tensor) -> Tensor:
    """Section 2: as Llama; section 2.4: the head's rows have length 1."""
    x = w["embedding.table.weight"][tokens_T]
    for layer in (Layer(w, 0), Layer(w, 1)):
        x = llama_block(layer, x, rms_norm, layer.heads)
    head = w["head.unembed.weight"]
    return rms_norm(x, w["norm.weight"]) @ (head / head.pow(2).sum(-1, keepdim=True).sqrt()).T


def dclm(w: Weights, tokens_T: Tensor) -> Tensor:
    """OpenLM: layer norms with a gain only, over all heads of queries and of keys too."""
    x = w["embedding.table.weight"][tokens_T]
    for layer in (Layer(w, 0), Layer(w, 1)):

        def qk(name: str, y: Tensor, layer: Layer = layer) -> list[Tensor]:
            flat = layer.linear(f"attention.sublayer.{name}", y)
            return list(layer_norm(flat, layer[f"attention.sublayer.qk_norm.{name}.weight"]).split(HEAD, dim=-1))

        x = llama_block(layer, x, layer_norm, qk)
    return layer_norm(x, w["norm.weight"]) @ w["head.unembed.weight"].T


def grok1(w: Weights, tokens_T: Tensor) -> Tensor:
    """Its released code: norms on both sides, scores bent at 30, two of eight gelu experts weighted by the softmax over all eight."""
    x = w["embedding.table.weight"][tokens_T] * math.sqrt(WIDTH)
    for layer in (Layer(w, 0), Layer(w, 1)):
        y = rms_norm(x, layer["attention.input_norm.weight"])
        keys, values = layer.heads("k", y), layer.heads("v", y)
        read = [
            attend(turned(q), turned(keys[head // 2]), values[head // 2], bend=lambda score: 30 * torch.tanh(score / 30))
            for head, q in enumerate(layer.heads("q", y))
        ]
        x = x + rms_norm(layer.out(read), layer["attention.output_norm.weight"])
        z = rms_norm(x, layer["ffn.input_norm.weight"])
        x = x + rms_norm(torch.stack([two_experts(layer, token) for token in z]), layer["ffn.output_norm.weight"])
    return rms_norm(x, w["norm.weight"]) @ w["embedding.table.weight"].T / math.sqrt(3)


def two_experts(layer: Layer, x_D: Tensor) -> Tensor:
    probability = torch.softmax(layer["ffn.sublayer.router.weight"] @ x_D, 0)
    best = sorted(range(8), key=lambda expert: -probability[expert].item())[:2]
    total = torch.zeros_like(x_D)
    for expert in best:
        gate, up, down = (layer[f"ffn.sublayer.experts.{name}.weight"][expert] for name in ("gate", "up", "down"))
        total = total + probability[expert] * (down @ (gelu_tanh(gate @ x_D) * (up @ x_D)))
    return total


def gpt3(w: Weights, tokens_T: Tensor) -> Tensor:
    """Section 2.1: GPT-2 whose every second layer sees a band, here of two tokens."""
    x = w["embedding.table.weight"][tokens_T] + w["positions.0.table.weight"]
    keeps: tuple[Keep, ...] = (past, lambda t, s: t - 2 < s <= t)
    for number, keep in enumerate(keeps):
        layer = Layer(w, number)
        y = layer_norm(x, layer["attention.input_norm.weight"], layer["attention.input_norm.bias"])
        heads = zip(*(layer.heads(name, y) for name in "qkv"), strict=True)
        x = x + layer.out([attend(q, k, v, keep=keep) for q, k, v in heads])
        x = x + layer.gpt_mlp(layer_norm(x, layer["ffn.input_norm.weight"], layer["ffn.input_norm.bias"]))
    return layer_norm(x, w["norm.weight"], w["norm.bias"]) @ w["embedding.table.weight"].T


REFERENCES: dict[str, Callable[[Weights, Tensor], Tensor]] = {
    "palm": palm,
    "gopher": gopher,
    "chinchilla": gopher,
    "baichuan2": baichuan2,
    "dclm": dclm,
    "grok1": grok1,
    "gpt3": gpt3,
}


def config_of(arch: str) -> Config:
    qk_norm = [f"attention.qk_norm.norm.eps={EPS}"] if arch == "dclm" else []
    return compose([f"arch={arch}", *SIZES, f"norm.eps={EPS}", *qk_norm])


class Measured(NamedTuple):
    """`logits` is the largest error, as a share of the largest logit, or of 1 where that is smaller."""

    logits: float
    largest_logit: float
    parameters: int


@torch.no_grad()
def measure(arch: str) -> Measured:
    """The model and the paper written out, with the same weights on the same tokens."""
    model = build_model(config_of(arch)).eval()
    randomise(model)
    tokens_T = torch.randint(0, 256, (TOKENS,), generator=torch.Generator().manual_seed(0))
    weights = {name: tensor.double() for name, tensor in model.state_dict().items()}
    expected = REFERENCES[arch](weights, tokens_T)
    error, largest = (model(tokens_T[None])[0].double() - expected).abs().max().item(), expected.abs().max().item()
    return Measured(error / max(1.0, largest), largest, sum(parameter.numel() for parameter in model.parameters()))


@pytest.mark.parametrize("arch", REFERENCES)
def test_logits_are_those_of_the_paper_written_out(arch: str) -> None:
    assert measure(arch).logits < LOGITS_TOLERANCE


@pytest.mark.parametrize(("arch", "z_loss"), {"palm": 1e-4, "baichuan2": 2e-4, "dclm": 1e-4}.items())
def test_loss_has_the_published_weight_of_the_z_loss(arch: str, z_loss: float) -> None:
    loss: Any = config_of(arch).loss
    assert loss.z_loss == z_loss


def test_feed_forward_layer_of_palm_is_as_wide_as_a_plain_one() -> None:
    """Section 2: d_ff is always 4 d_model, with three matrices."""
    ffn = build_model(config_of("palm")).blocks[0].ffn.sublayer
    assert [tuple(matrix.weight.shape) for matrix in (ffn.gate, ffn.up, ffn.down)] == [(128, 32), (128, 32), (32, 128)]


def test_expert_of_grok_is_16_thirds_as_wide_as_the_model() -> None:
    """32768 of 6144 in its released code."""
    ffn = build_model(compose(["arch=grok1", "model.width=96", *SIZES[1:]])).blocks[0].ffn.sublayer
    assert ffn.experts.up.weight.shape == (8, 96 * 32768 // 6144, 96)
