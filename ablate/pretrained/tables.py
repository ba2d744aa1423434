"""What a family of published checkpoints is: its options in our words, and a table from its tensors' names to ours.

    Family(
        model_type="llama",                    # config.json's own word
        arch="llama",                          # conf/arch/llama.yaml, or a function of the config that gives the word
        overrides=overrides_of_llama,          # HfConfig -> list of Hydra overrides on top of `arch=llama`
        rules=rules_of_llama,                  # HfConfig -> list of Rule, the first whose pattern matches a whole name counts
    )

    rule(r"model\\.layers\\.(\\d+)\\.self_attn\\.([qkv])_proj\\.(weight|bias)", r"blocks.\\1.attention.sublayer.\\2.\\3")
    rule(r"...query_key_value\\.(weight|bias)", r"...q.\\2", r"...k.\\2", r"...v.\\2", op=per_head(heads, H, H, H))
    rule(r"...experts\\.(\\d+)\\.w1\\.weight", r"blocks.\\1.ffn.sublayer.experts.gate.weight[\\2]")   # stacked by that index
    skip(r"...")                               # a buffer that we compute ourselves
    constant(r"...", 1.0)                      # what we do without while it has this value
    tied(r"lm_head\\.weight", r"embedding.table.weight")   # another name of the same tensor: one may be missing, both must be equal
    fold(r"...", r"positions.0.table.weight")  # is added (broadcast) to that tensor; gradients leave it out

An operation takes one tensor and gives one piece a target. `convert` maps weights; with gradients=True it maps gradients, which is the
same but for `scaled` and `fold`: if ours = A theirs, then theirs' gradient is A^T of ours, and A^T = A^-1 for a permutation.

HfConfig is a read-only mapping of config.json that asks: `hf["hidden_size"]` is an error of the person when it is missing,
`hf.get(key, default)` names the family's default, `hf.only(key, allowed, default)` refuses what our model cannot hold.
`sizes`, `feed_forward`, `activation`, `key_heads`, `rope`, `changed`, `layers_where` write the overrides that many families share.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ablate.errors import ConfigError, Problem

# --- operations on layouts


@dataclass(frozen=True)
class Operation:
    """One tensor -> its pieces, for weights; `gradient` where gradients are mapped otherwise."""

    weight: Callable[[Tensor], tuple[Tensor, ...]]
    gradient: Callable[[Tensor], tuple[Tensor, ...]]


def linear(function: Callable[[Tensor], tuple[Tensor, ...]]) -> Operation:
    """An operation that only moves numbers, so that gradients move alike."""
    return Operation(function, function)


copy = linear(lambda tensor: (tensor,))

transpose = linear(lambda tensor: (tensor.transpose(-1, -2) if tensor.ndim > 1 else tensor,))
"""(..., in, out) -> (..., out, in), as Conv1D stores a layer; a vector (its bias) stays."""


def rows(*sizes: int, dim: int = 0) -> Operation:
    """Cuts a fused layer into pieces of these many rows: [q; k; v], [gate; up]."""
    return linear(lambda tensor: tuple(tensor.split(list(sizes), dim)))


def per_head(groups: int, *sizes: int) -> Operation:
    """Rows stand as `groups` times (sizes[0] rows, sizes[1] rows, ...); each piece gathers its rows of all groups.

    q, k, v of each head: per_head(heads, H, H, H). A group of query heads, its k and its v: per_head(K, N/K*H, H, H).
    """

    def cut(tensor: Tensor) -> tuple[Tensor, ...]:
        grouped = tensor.unflatten(0, (groups, sum(sizes)))
        return tuple(piece.flatten(0, 1) for piece in grouped.split(list(sizes), 1))

    return linear(cut)


def alternate(parts: int = 2, dim: int = 0) -> Operation:
    """Every parts-th row from 0, from 1, ...: gate and up stored in turn."""

    def cut(tensor: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.unflatten(dim, (-1, parts)).unbind(dim + 1 if dim >= 0 else dim))

    return linear(cut)


def halved(heads: int, head_dim: int, rotary: int | None = None, offset: int = 0) -> Operation:
    """Rows of rotated pairs (2i, 2i+1) -> (i, i + rotary/2), in each head, for `rotary` features from `offset` on."""
    order = pair_order(head_dim, rotary, offset)

    def move(tensor: Tensor) -> tuple[Tensor, ...]:
        return (tensor.unflatten(0, (heads, head_dim)).index_select(1, order.to(tensor.device)).flatten(0, 1),)

    return linear(move)


def pair_order(head_dim: int, rotary: int | None = None, offset: int = 0) -> Tensor:
    """ours[i] = theirs[order[i]] for the features of one head: 0, 2, 4, ..., 1, 3, 5, ... (`reordered` applies it to a norm's weight)."""
    width = head_dim if rotary is None else rotary
    pairs = torch.arange(width).unflatten(0, (-1, 2)).T.flatten() + offset
    return torch.cat([torch.arange(offset), pairs, torch.arange(offset + width, head_dim)])


def reordered(order: Tensor, *dims: int) -> Operation:
    """The same permutation of features along each of `dims` that the tensor has."""

    def move(tensor: Tensor) -> tuple[Tensor, ...]:
        for dim in dims:
            tensor = tensor.index_select(dim, order.to(tensor.device))
        return (tensor,)

    return linear(move)


def without_first(count: int) -> Operation:
    """Leaves out the first rows: places of a position table that no token takes."""
    return linear(lambda tensor: (tensor[count:],))


def only_first(count: int) -> Operation:
    """Keeps the first rows."""
    return linear(lambda tensor: (tensor[:count],))


def shaped(*shape: int) -> Operation:
    """The same numbers in another shape."""
    return linear(lambda tensor: (tensor.reshape(shape),))


def scaled(factor: float) -> Operation:
    """ours = factor * theirs, so gradient of ours = gradient of theirs / factor."""
    return Operation(lambda tensor: (tensor * factor,), lambda tensor: (tensor / factor,))


def chain(*operations: Operation) -> Operation:
    """One after the other; each is applied to every piece of the one before."""

    def through(step: Callable[[Operation, Tensor], tuple[Tensor, ...]]) -> Callable[[Tensor], tuple[Tensor, ...]]:
        def run(tensor: Tensor) -> tuple[Tensor, ...]:
            pieces: tuple[Tensor, ...] = (tensor,)
            for operation in operations:
                pieces = tuple(made for piece in pieces for made in step(operation, piece))
            return pieces

        return run

    return Operation(through(lambda op, tensor: op.weight(tensor)), through(lambda op, tensor: op.gradient(tensor)))


def each(cut: Operation, *operations: Operation) -> Operation:
    """Cuts, then an operation of its own for each piece: each(rows(d, k, k), halved(...), halved(...), copy)."""

    def weight(tensor: Tensor) -> tuple[Tensor, ...]:
        return tuple(made for op, piece in zip(operations, cut.weight(tensor), strict=True) for made in op.weight(piece))

    def gradient(tensor: Tensor) -> tuple[Tensor, ...]:
        return tuple(made for op, piece in zip(operations, cut.gradient(tensor), strict=True) for made in op.gradient(piece))

    return Operation(weight, gradient)


# --- the table


@dataclass(frozen=True)
class Rule:
    """Names that match `pattern` as a whole go to `targets`, one a piece; \\1 is the pattern's first group. No target: left out."""

    pattern: str
    targets: tuple[str, ...]
    op: Operation = copy
    tied: bool = False
    folded: bool = False
    value: float | None = None


def rule(pattern: str, *targets: str, op: Operation = copy) -> Rule:
    """The plain rule. A target that ends in [\\2] is one slice of a stack."""
    return Rule(pattern, targets, op)


def skip(pattern: str) -> Rule:
    """What our model computes or does without."""
    return Rule(pattern, ())


def constant(pattern: str, value: float) -> Rule:
    """What our model does without as long as it has this value everywhere."""
    return Rule(pattern, (), value=value)


def tied(pattern: str, target: str, op: Operation = copy) -> Rule:
    """Another name of a tensor that another rule gives; where both are there they must be equal."""
    return Rule(pattern, (target,), op, tied=True)


def fold(pattern: str, target: str, op: Operation = copy) -> Rule:
    """What is added to a tensor of ours, being constant in its place (a token type that all tokens have)."""
    return Rule(pattern, (target,), op, folded=True)


SKIPPED = (r".*rotary_emb\.(?:original_)?inv_freq", r".*\.masked_bias")
"""Buffers that old checkpoints hold, of any family."""


@dataclass(frozen=True)
class Family:
    """One model_type: see the module's docstring."""

    model_type: str
    arch: str | Callable[[HfConfig], str]
    overrides: Callable[[HfConfig], list[str]]
    rules: Callable[[HfConfig], list[Rule]]

    def all_overrides(self, config: Mapping[str, Any]) -> list[str]:
        """`arch=...` and all that follows. One ConfigError with everything that our model cannot hold."""
        hf = HfConfig(config)
        word = self.arch if isinstance(self.arch, str) else self.arch(hf)
        overrides = [f"arch={word}", *self.overrides(hf)]
        if hf.problems:
            raise ConfigError(hf.problems)
        return overrides


def convert(family: Family, config: Mapping[str, Any], tensors: Mapping[str, Tensor], *, gradients: bool = False) -> dict[str, Tensor]:
    """Their tensors under our names, in our layout. Every tensor is used; those that no rule knows are named in a ConfigError."""
    rules = [*family.rules(HfConfig(config)), *(skip(pattern) for pattern in SKIPPED)]
    ours: dict[str, Tensor] = {}
    stacks: dict[str, dict[int, Tensor]] = {}
    twice: list[tuple[str, str, Tensor]] = []
    added: list[tuple[str, Tensor]] = []
    unknown: list[str] = []
    for name, tensor in tensors.items():
        matched, match = first_match(rules, name)
        if matched is None or match is None:
            unknown.append(name)
            continue
        if matched.value is not None and not gradients and bool((tensor != matched.value).any()):
            raise ConfigError.at(name, f"must be {matched.value:g}, which is what our model has in its place")
        if not matched.targets or (gradients and matched.folded):
            continue
        try:
            pieces = (matched.op.gradient if gradients else matched.op.weight)(tensor)
        except (RuntimeError, IndexError) as error:
            message = f"has shape {tuple(tensor.shape)}, which does not fit config.json: {str(error).partition(chr(10))[0]}"
            raise ConfigError.at(name, message) from None
        assert len(pieces) == len(matched.targets), f"{matched.pattern}: {len(pieces)} pieces for {len(matched.targets)} targets"
        for template, piece in zip(matched.targets, pieces, strict=True):
            target, index = stack_index(match.expand(template))
            if matched.tied:
                twice.append((name, target, piece))
            elif matched.folded:
                added.append((target, piece))
            elif index is not None:
                assert index not in stacks.setdefault(target, {}), f"{target}[{index}] is given twice"
                stacks[target][index] = piece
            else:
                assert target not in ours, f"{target} is given twice"
                ours[target] = piece
    if unknown:
        raise ConfigError([Problem(name, f"no tensor that a {family.model_type} model of this config.json has") for name in unknown])
    ours |= {target: stacked(target, pieces) for target, pieces in stacks.items()}
    for name, target, piece in twice:
        if not gradients and not torch.equal(ours.setdefault(target, piece), piece):
            raise ConfigError.at(name, f"differs from the {target} it is tied to (tie_word_embeddings)")
    for target, piece in added:
        if target in ours:
            ours[target] = ours[target] + piece
    return ours


def first_match(rules: Sequence[Rule], name: str) -> tuple[Rule | None, re.Match[str] | None]:
    """The first rule for a name."""
    for candidate in rules:
        match = re.fullmatch(candidate.pattern, name)
        if match:
            return candidate, match
    return None, None


def sources(family: Family, config: Mapping[str, Any], target: str) -> str:
    """The names of theirs that give a tensor of ours, for messages: patterns, with the number of the layer in them."""
    found = []
    for candidate in family.rules(HfConfig(config)):
        for template in candidate.targets:
            groups = re.findall(r"\\\d", template)
            shape = re.escape(re.sub(r"\[\\\d\]$", "", template))
            for group in groups:
                shape = shape.replace(re.escape(group), r"(\w+)")
            match = re.fullmatch(shape, target)
            if match:
                found.append(readable(candidate.pattern, {int(g[1]): value for g, value in zip(groups, match.groups(), strict=False)}))
    return " or ".join(dict.fromkeys(found)) or "no rule"


def readable(pattern: str, values: Mapping[int, str]) -> str:
    """A pattern as a name: its groups with their values, without what may be left out."""
    name = re.sub(r"\(\?:[^()]*\)\?", "", pattern)
    for number in range(1, 1 + len(re.findall(r"\([^?]", name))):
        name = re.sub(r"\([^?][^()]*\)", values.get(number, "*"), name, count=1)
    return name.replace("\\", "")


def stack_index(target: str) -> tuple[str, int | None]:
    """'a.weight[3]' -> ('a.weight', 3)."""
    match = re.fullmatch(r"(.*)\[(\d+)\]", target)
    return (match[1], int(match[2])) if match else (target, None)


def stacked(target: str, pieces: Mapping[int, Tensor]) -> Tensor:
    """Slices 0, 1, 2, ... as one tensor."""
    missing = sorted(set(range(max(pieces) + 1)) - set(pieces))
    if missing:
        raise ConfigError.at(target, f"slice {missing[0]} is missing")
    return torch.stack([pieces[index] for index in range(len(pieces))])


# --- config.json


class HfConfig(Mapping[str, Any]):
    """config.json, read with questions; `problems` gathers what our model cannot hold."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.raw = dict(values)
        self.problems: list[Problem] = []

    def __getitem__(self, key: str) -> Any:
        if self.raw.get(key) is None:
            raise ConfigError.at(f"config.json: {key}", "is missing")
        return self.raw[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.raw)

    def __len__(self) -> int:
        return len(self.raw)

    def __contains__(self, key: object) -> bool:
        return key in self.raw

    def get(self, key: str, default: Any = None) -> Any:
        """The value; `default` where it is missing or null."""
        value = self.raw.get(key)
        return default if value is None else value

    def only(self, key: str, allowed: Sequence[Any], default: Any = None) -> Any:
        """The value, which must be one of `allowed`."""
        value = self.get(key, default)
        if value not in allowed:
            self.refuse(key, f"{value!r} is not a model that this arch can hold; can be: {', '.join(map(repr, allowed))}")
        return value

    def refuse(self, key: str, message: str) -> None:
        """Notes something that our model cannot hold."""
        self.problems.append(Problem(f"config.json: {key}", message))


# --- overrides that many families share


def sizes(
    hf: HfConfig,
    *,
    width: str = "hidden_size",
    depth: str = "num_hidden_layers",
    heads: str = "num_attention_heads",
    context: str = "max_position_embeddings",
) -> list[str]:
    """model.* and the vocabulary."""
    return [
        f"model.width={hf[width]}",
        f"model.depth={hf[depth]}",
        f"model.heads={hf[heads]}",
        f"model.context={hf[context]}",
        "tokenizer=bpe",
        f"tokenizer.vocab_size={hf['vocab_size']}",
    ]


def feed_forward(width: int, inner: int, *, gated: bool) -> list[str]:
    """A layer of exactly `inner` features."""
    return [f"ffn.ratio={inner}/{width}", "ffn.multiple_of=1", *(["ffn.glu_factor=1"] if gated else [])]


ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
}
"""transformers' word for an activation -> our ffn variant of two matrices."""


def activation(hf: HfConfig, key: str, default: str, usual: str) -> list[str]:
    """The ffn of a config's activation, where it is not the arch's own."""
    word = hf.only(key, list(ACTIVATIONS), default)
    return changed("ffn.kind", ACTIVATIONS.get(word, usual), usual)


def key_heads(count: int, heads: int, usual: str) -> list[str]:
    """The kind of attention that has `count` key heads, where it is not the arch's own (`usual`), and kv_heads."""
    kind = "mha" if count == heads else "mqa" if count == 1 else "gqa"
    grouped = [f"attention.kv_heads={count}"] if kind == "gqa" else ["~attention.kv_heads"] if usual == "gqa" else []
    return [*changed("attention.kind", kind, usual), *grouped]


def changed(key: str, value: Any, usual: Any) -> list[str]:
    """An override where a checkpoint differs from its arch: what does not differ stays the arch's, so that parity proves it."""
    return [] if value == usual else [option(key, value)]


def layers_where(name: str, layers: Sequence[int], usual: Sequence[int]) -> list[str]:
    """The rule `name` of the arch for these layers; `usual` are those that it has by itself."""
    if not layers:
        return [f"~layers.{name}"]
    if list(layers) == list(usual):
        return []
    return [f"~layers.{name}.where", f"layers.{name}.where.layers={text(list(layers))}"]


def text(value: Any) -> str:
    """A number, list or mapping as Hydra's grammar takes it: infinity is .inf, a float has all its digits."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, float):
        return ".inf" if value == float("inf") else repr(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(text, value)) + "]"
    return str(value)


def option(key: str, value: Any) -> str:
    """One override."""
    return f"{key}={text(value)}"


def rope_parameters(hf: HfConfig, theta: float = 10000.0, layer_type: str | None = None) -> dict[str, Any]:
    """{rope_type, rope_theta, ...} of both spellings: rope_parameters, or rope_theta beside rope_scaling (type or rope_type)."""
    found = hf.get("rope_parameters") or hf.get("rope_scaling") or {}
    if layer_type is not None:
        found = found.get(layer_type, found)
    parameters = {key: value for key, value in found.items() if value is not None}
    parameters["rope_type"] = parameters.pop("type", None) or parameters.get("rope_type", "default")
    parameters.setdefault("rope_theta", hf.get("rope_theta", theta))
    return parameters


def rope(hf: HfConfig, parameters: Mapping[str, Any], *, fraction: float | None = None, scaling: bool = True) -> list[str]:
    """position.theta, position.fraction and the scaling of one set of rope_parameters; the arch names position=rope itself."""
    share = fraction if fraction is not None else parameters.get("partial_rotary_factor", hf.get("partial_rotary_factor"))
    overrides = [option("position.theta", float(parameters["rope_theta"]))]
    if share is not None and parameters["rope_type"] != "proportional":
        overrides.append(option("position.fraction", float(share)))
    return overrides + (rope_scaling(hf, parameters) if scaling else [])


def rope_scaling(hf: HfConfig, parameters: Mapping[str, Any]) -> list[str]:
    """position/scaling=... and its numbers, as transformers' rope_type means them."""
    kind = parameters["rope_type"]
    original = parameters.get("original_max_position_embeddings", hf.get("original_max_position_embeddings"))
    key = "position.scaling"
    if kind == "default":
        return ["position/scaling=none"]
    if kind == "linear":
        return ["position/scaling=linear", option(f"{key}.factor", float(parameters["factor"]))]
    if kind == "llama3":
        return [
            "position/scaling=llama3",
            option(f"{key}.factor", float(parameters["factor"])),
            option(f"{key}.low", float(parameters["low_freq_factor"])),
            option(f"{key}.high", float(parameters["high_freq_factor"])),
            option(f"{key}.original_context", original),
        ]
    if kind == "proportional":
        return ["position/scaling=proportional", option(f"{key}.proportion", float(parameters["partial_rotary_factor"]))]
    if kind == "yarn":
        return ["position/scaling=yarn", *yarn(parameters, key, original or hf["max_position_embeddings"])]
    if kind == "longrope":
        return ["position/scaling=longrope", *longrope(hf, parameters, key, original or hf["max_position_embeddings"])]
    hf.refuse("rope_parameters", f"no rope_type that we have: {kind!r}; can be: default, linear, llama3, longrope, proportional, yarn")
    return []


def yarn(parameters: Mapping[str, Any], key: str, original: int) -> list[str]:
    """YaRN's numbers; mscale / mscale_all_dim is the factor that DeepSeek asks for (null: 0.1 ln(factor) + 1)."""
    factor, attention = float(parameters["factor"]), parameters.get("attention_factor")
    if attention is None and parameters.get("mscale") and parameters.get("mscale_all_dim"):
        attention = yarn_scale(factor, parameters["mscale"]) / yarn_scale(factor, parameters["mscale_all_dim"])
    return [
        option(f"{key}.factor", factor),
        option(f"{key}.original_context", original),
        option(f"{key}.beta_fast", float(parameters.get("beta_fast", 32))),
        option(f"{key}.beta_slow", float(parameters.get("beta_slow", 1))),
        option(f"{key}.truncate", bool(parameters.get("truncate", True))),
        option(f"{key}.attention_factor", attention),
    ]


def yarn_scale(factor: float, mscale: float) -> float:
    """0.1 mscale ln(factor) + 1 (arXiv 2309.00071, eq. 22)."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def longrope(hf: HfConfig, parameters: Mapping[str, Any], key: str, original: int) -> list[str]:
    """LongRoPE's factors for the whole context: the long ones where it goes beyond the original one."""
    stretched = hf["max_position_embeddings"] > original
    return [
        option(f"{key}.factors", [float(factor) for factor in parameters["long_factor" if stretched else "short_factor"]]),
        option(f"{key}.original_context", original),
        option(f"{key}.attention_factor", parameters.get("attention_factor")),
    ]
