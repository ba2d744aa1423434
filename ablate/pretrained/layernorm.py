"""Families whose norm is LayerNorm, from GPT on. Each: its options in our words, then its table of names."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ablate.pretrained.tables import (
    Family,
    HfConfig,
    Rule,
    activation,
    chain,
    changed,
    feed_forward,
    fold,
    halved,
    key_heads,
    layers_where,
    only_first,
    option,
    pair_order,
    per_head,
    reordered,
    rope,
    rope_parameters,
    rows,
    rule,
    sizes,
    skip,
    tied,
    transpose,
    without_first,
)

A = r"blocks.\1.attention.sublayer"
F = r"blocks.\1.ffn.sublayer"
TABLE = "embedding.table.weight"
PLACES = "positions.0.table.weight"
TORCH_EPS = 1e-5
"""What torch's LayerNorm has when a family's code says nothing."""

GPT_SIZES = {"width": "n_embd", "depth": "n_layer", "heads": "n_head", "context": "n_positions"}


def head_dim(hf: HfConfig, width: str = "hidden_size", heads: str = "num_attention_heads") -> int:
    """D / N."""
    return int(hf[width]) // int(hf[heads])


def group_size(hf: HfConfig) -> tuple[int, int]:
    """Query heads and key heads of the Llama spelling."""
    heads = int(hf["num_attention_heads"])
    return heads, int(hf.get("num_key_value_heads", heads))


def is_tied(hf: HfConfig, default: bool) -> bool:
    return bool(hf.get("tie_word_embeddings", default))


def head(hf: HfConfig, default: bool) -> list[str]:
    """The kind of head where it is not the family's own."""
    return changed("head.kind", "tied" if is_tied(hf, default) else "untied", "tied" if default else "untied")


def grouped(hf: HfConfig, usual: str) -> list[str]:
    heads, kv_heads = group_size(hf)
    return key_heads(kv_heads, heads, usual)


def biases(qkv: bool, out: bool) -> list[str]:
    return [option("attention.qkv_bias", qkv), option("attention.out_bias", out)]


def limit(hf: HfConfig, tokens: int | None) -> float:
    """A window as our option has it: one that covers the context is none."""
    return math.inf if tokens is None or tokens >= hf["max_position_embeddings"] else tokens


def windowed(layers: Sequence[int], window: float, usual: Sequence[int]) -> list[str]:
    """The arch's rule `local` with these layers and this window."""
    if math.isinf(window) or not layers:
        return ["~layers.local"]
    return [*layers_where("local", layers, usual), option("layers.local.set.attention.window", window)]


def head_rules(hf: HfConfig, default: bool, bias: bool = False) -> list[Rule]:
    """lm_head: another name of the embedding, or a matrix of its own."""
    weight = tied(r"lm_head\.weight", TABLE) if is_tied(hf, default) else rule(r"lm_head\.weight", "head.unembed.weight")
    return [weight, *([rule(r"lm_head\.bias", "head.bias")] if bias else [])]


# --- GPT-2 and GPT (Radford et al. 2019, 2018): Conv1D stores (in, out), q, k and v as one


def gpt2_overrides(hf: HfConfig) -> list[str]:
    hf.only("scale_attn_weights", [True], True)
    hf.only("scale_attn_by_inverse_layer_idx", [False], False)
    hf.only("add_cross_attention", [False], False)
    width = hf["n_embd"]
    return [
        *sizes(hf, **GPT_SIZES),
        option("norm.eps", hf.get("layer_norm_epsilon", 1e-5)),
        *activation(hf, "activation_function", "gelu_new", "gelu_tanh"),
        *feed_forward(width, hf.get("n_inner", 4 * width), gated=False),
        *head(hf, True),
    ]


def gpt2_rules(hf: HfConfig) -> list[Rule]:
    p, width = r"(?:transformer\.)?", int(hf["n_embd"])
    layer = p + r"h\.(\d+)\."
    return [
        rule(p + r"wte\.weight", TABLE),
        rule(p + r"wpe\.weight", PLACES),
        rule(p + r"ln_f\.(weight|bias)", r"norm.\1"),
        rule(layer + r"ln_1\.(weight|bias)", r"blocks.\1.attention.input_norm.\2"),
        rule(layer + r"ln_2\.(weight|bias)", r"blocks.\1.ffn.input_norm.\2"),
        *conv1d_rules(layer, width),
        *head_rules(hf, True),
    ]


def conv1d_rules(layer: str, width: int) -> list[Rule]:
    """Attention and feed-forward of both GPTs. `attn.bias` is no bias but the causal mask, which old checkpoints hold."""
    cut = chain(transpose, rows(width, width, width))
    return [
        skip(layer + r"attn\.bias"),
        rule(layer + r"attn\.c_attn\.(weight|bias)", A + r".q.\2", A + r".k.\2", A + r".v.\2", op=cut),
        rule(layer + r"attn\.c_proj\.(weight|bias)", A + r".out.\2", op=transpose),
        rule(layer + r"mlp\.c_fc\.(weight|bias)", F + r".up.\2", op=transpose),
        rule(layer + r"mlp\.c_proj\.(weight|bias)", F + r".down.\2", op=transpose),
    ]


def gpt1_overrides(hf: HfConfig) -> list[str]:
    width = hf["n_embd"]
    hf.only("afn", ["gelu"], "gelu")  # its word for the approximation by tanh, which later models call gelu_new
    return [
        *sizes(hf, **GPT_SIZES),
        option("norm.eps", hf.get("layer_norm_epsilon", 1e-5)),
        *feed_forward(width, 4 * width, gated=False),
        *head(hf, True),
    ]


def gpt1_rules(hf: HfConfig) -> list[Rule]:
    p, width = r"(?:transformer\.)?", int(hf["n_embd"])
    layer = p + r"h\.(\d+)\."
    return [
        skip(p + r"position_ids"),
        rule(p + r"tokens_embed\.weight", TABLE),
        rule(p + r"positions_embed\.weight", PLACES),
        rule(layer + r"ln_1\.(weight|bias)", r"blocks.\1.attention.residual_norm.\2"),
        rule(layer + r"ln_2\.(weight|bias)", r"blocks.\1.ffn.residual_norm.\2"),
        *conv1d_rules(layer, width),
        *head_rules(hf, True),
    ]


# --- OPT (arXiv 2205.01068): positions start at row 2; its 350M is post-norm with a narrow embedding


def opt_is_narrow(hf: HfConfig) -> bool:
    return bool(hf.get("word_embed_proj_dim", hf["hidden_size"]) != hf["hidden_size"])


def opt_arch(hf: HfConfig) -> str:
    return "opt" if hf.get("do_layer_norm_before", True) else "opt_350m"


def opt_overrides(hf: HfConfig) -> list[str]:
    hf.only("_remove_final_layer_norm", [False], False)
    hf.only("layer_norm_elementwise_affine", [True], True)
    bias, usually_narrow = bool(hf.get("enable_bias", True)), opt_arch(hf) == "opt_350m"
    narrow = changed("embedding.kind", "factorised", "factorised" if usually_narrow else "token")
    return [
        *sizes(hf),
        option("norm.eps", TORCH_EPS),
        *([*narrow, option("embedding.dim", hf["word_embed_proj_dim"])] if opt_is_narrow(hf) else ["embedding=token"] * usually_narrow),
        *([] if bias else [*biases(False, False), "ffn.up_bias=false", "ffn.down_bias=false"]),
        *activation(hf, "activation_function", "relu", "relu"),
        *feed_forward(hf["hidden_size"], hf["ffn_dim"], gated=False),
        *head(hf, True),
    ]


def opt_rules(hf: HfConfig) -> list[Rule]:
    p = r"(?:model\.)?decoder\."
    layer = p + r"layers\.(\d+)\."
    site = "input_norm" if hf.get("do_layer_norm_before", True) else "residual_norm"
    return [
        rule(p + r"embed_tokens\.weight", TABLE),
        rule(p + r"embed_positions\.weight", PLACES, op=without_first(2)),
        rule(p + r"project_in\.weight", "embedding.project.weight"),
        rule(p + r"project_out\.weight", "head.project.weight"),
        rule(p + r"final_layer_norm\.(weight|bias)", r"norm.\1"),
        rule(layer + r"self_attn\.([qkv])_proj\.(weight|bias)", A + r".\2.\3"),
        rule(layer + r"self_attn\.out_proj\.(weight|bias)", A + r".out.\2"),
        rule(layer + r"self_attn_layer_norm\.(weight|bias)", rf"blocks.\1.attention.{site}.\2"),
        rule(layer + r"final_layer_norm\.(weight|bias)", rf"blocks.\1.ffn.{site}.\2"),
        rule(layer + r"fc1\.(weight|bias)", F + r".up.\2"),
        rule(layer + r"fc2\.(weight|bias)", F + r".down.\2"),
        *head_rules(hf, True),
    ]


# --- the Transformer's decoder (arXiv 1706.03762), as Marian has it without an encoder


def marian_overrides(hf: HfConfig) -> list[str]:
    hf.only("is_encoder_decoder", [False], True)
    return [
        *sizes(hf, width="d_model", depth="decoder_layers", heads="decoder_attention_heads"),
        option("norm.eps", TORCH_EPS),
        *changed("embedding.scale", "sqrt_width" if hf.get("scale_embedding", False) else 1.0, "sqrt_width"),
        *activation(hf, "activation_function", "gelu", "relu"),
        *feed_forward(hf["d_model"], hf["decoder_ffn_dim"], gated=False),
        *head(hf, True),
    ]


def marian_rules(hf: HfConfig) -> list[Rule]:
    """Its sinusoids stand as all sines, then all cosines; ours in turn. The residual stream is permuted to ours, everywhere."""
    width = int(hf["d_model"])
    order = torch.arange(width).unflatten(0, (2, -1)).T.flatten()
    into, out = reordered(order, -1), reordered(order, 0)
    p = r"model\.decoder\."
    layer = p + r"layers\.(\d+)\."
    unembed = rule(r"lm_head\.weight", "head.unembed.weight", op=into)
    return [
        rule(p + r"embed_tokens\.weight", TABLE, op=into),
        skip(p + r"embed_positions\.weights?"),
        rule(layer + r"self_attn\.([qkv])_proj\.weight", A + r".\2.weight", op=into),
        rule(layer + r"self_attn\.([qkv])_proj\.bias", A + r".\2.bias"),
        rule(layer + r"self_attn\.out_proj\.(weight|bias)", A + r".out.\2", op=out),
        rule(layer + r"self_attn_layer_norm\.(weight|bias)", r"blocks.\1.attention.residual_norm.\2", op=out),
        rule(layer + r"final_layer_norm\.(weight|bias)", r"blocks.\1.ffn.residual_norm.\2", op=out),
        rule(layer + r"fc1\.weight", F + ".up.weight", op=into),
        rule(layer + r"fc1\.bias", F + ".up.bias"),
        rule(layer + r"fc2\.(weight|bias)", F + r".down.\2", op=out),
        tied(r"lm_head\.weight", TABLE, into) if is_tied(hf, True) else unembed,
    ]


# --- BERT (arXiv 1810.04805) as a decoder: all tokens are of the first type


def bert_overrides(hf: HfConfig) -> list[str]:
    hf.only("is_decoder", [True], False)
    hf.only("add_cross_attention", [False], False)
    hf.only("position_embedding_type", ["absolute"], "absolute")
    hf.only("hidden_act", ["gelu"], "gelu")
    hf.only("tie_word_embeddings", [True], True)
    eps = hf.get("layer_norm_eps", 1e-12)
    return [
        *sizes(hf),
        option("norm.eps", eps),
        option("embedding.norm.eps", eps),
        option("head.transform.norm.eps", eps),
        *feed_forward(hf["hidden_size"], hf["intermediate_size"], gated=False),
    ]


def bert_rules(hf: HfConfig) -> list[Rule]:
    p = r"(?:bert\.)?embeddings\."
    layer = r"(?:bert\.)?encoder\.layer\.(\d+)\."
    return [
        rule(p + r"word_embeddings\.weight", TABLE),
        rule(p + r"position_embeddings\.weight", PLACES),
        fold(p + r"token_type_embeddings\.weight", PLACES, only_first(1)),
        rule(p + r"LayerNorm\.(weight|bias)", r"embedding.norm.\1"),
        skip(p + r"position_ids"),
        *(
            rule(layer + rf"attention\.self\.{theirs}\.(weight|bias)", A + rf".{ours}.\2")
            for theirs, ours in (("query", "q"), ("key", "k"), ("value", "v"))
        ),
        rule(layer + r"attention\.output\.dense\.(weight|bias)", A + r".out.\2"),
        rule(layer + r"attention\.output\.LayerNorm\.(weight|bias)", r"blocks.\1.attention.residual_norm.\2"),
        rule(layer + r"intermediate\.dense\.(weight|bias)", F + r".up.\2"),
        rule(layer + r"output\.dense\.(weight|bias)", F + r".down.\2"),
        rule(layer + r"output\.LayerNorm\.(weight|bias)", r"blocks.\1.ffn.residual_norm.\2"),
        rule(r"cls\.predictions\.transform\.dense\.(weight|bias)", r"head.transform.linear.\1"),
        rule(r"cls\.predictions\.transform\.LayerNorm\.(weight|bias)", r"head.transform.norm.\1"),
        rule(r"cls\.predictions\.bias", "head.bias"),
        tied(r"cls\.predictions\.decoder\.bias", "head.bias"),
        tied(r"cls\.predictions\.decoder\.weight", TABLE),
        skip(r"(?:bert\.pooler|cls\.seq_relationship)\..*"),
    ]


# --- GPT-Neo: every other layer looks back over a window; scores are not scaled


def gpt_neo_overrides(hf: HfConfig) -> list[str]:
    width, depth = hf["hidden_size"], int(hf["num_layers"])
    kinds = hf.get("attention_layers") or [kind for kinds, count in hf["attention_types"] for _ in range(count) for kind in kinds]
    local = [layer for layer, kind in enumerate(kinds) if kind == "local"]
    return [
        *sizes(hf, depth="num_layers", heads="num_heads"),
        option("norm.eps", hf.get("layer_norm_epsilon", 1e-5)),
        *activation(hf, "activation_function", "gelu_new", "gelu_tanh"),
        *feed_forward(width, hf.get("intermediate_size", 4 * width), gated=False),
        *head(hf, True),
        *windowed(local, limit(hf, hf.get("window_size", 256)), range(1, depth, 2)),
    ]


def gpt_neo_rules(hf: HfConfig) -> list[Rule]:
    p = r"(?:transformer\.)?"
    layer = p + r"h\.(\d+)\."
    return [
        skip(layer + r"attn\.attention\.(?:bias|masked_bias)"),
        rule(p + r"wte\.weight", TABLE),
        rule(p + r"wpe\.weight", PLACES),
        rule(p + r"ln_f\.(weight|bias)", r"norm.\1"),
        rule(layer + r"ln_1\.(weight|bias)", r"blocks.\1.attention.input_norm.\2"),
        rule(layer + r"ln_2\.(weight|bias)", r"blocks.\1.ffn.input_norm.\2"),
        rule(layer + r"attn\.attention\.([qkv])_proj\.weight", A + r".\2.weight"),
        rule(layer + r"attn\.attention\.out_proj\.(weight|bias)", A + r".out.\2"),
        rule(layer + r"mlp\.c_fc\.(weight|bias)", F + r".up.\2"),
        rule(layer + r"mlp\.c_proj\.(weight|bias)", F + r".down.\2"),
        *head_rules(hf, True),
    ]


# --- GPT-J: parallel, one norm for both branches; rotated pairs stand side by side


def gptj_overrides(hf: HfConfig) -> list[str]:
    hf.only("tie_word_embeddings", [False], False)
    width = hf["n_embd"]
    rotary = hf.get("rotary_dim", head_dim(hf, "n_embd", "n_head"))
    return [
        *sizes(hf, **GPT_SIZES),
        option("norm.eps", hf.get("layer_norm_epsilon", 1e-5)),
        option("position.fraction", rotary / head_dim(hf, "n_embd", "n_head")),
        *activation(hf, "activation_function", "gelu_new", "gelu_tanh"),
        *feed_forward(width, hf.get("n_inner", 4 * width), gated=False),
    ]


def gptj_rules(hf: HfConfig) -> list[Rule]:
    heads, width = int(hf["n_head"]), head_dim(hf, "n_embd", "n_head")
    turned = halved(heads, width, hf.get("rotary_dim", width))
    p = r"(?:transformer\.)?"
    layer = p + r"h\.(\d+)\."
    return [
        skip(layer + r"attn\.(?:bias|masked_bias|embed_positions)"),
        rule(p + r"wte\.weight", TABLE),
        rule(p + r"ln_f\.(weight|bias)", r"norm.\1"),
        rule(layer + r"ln_1\.(weight|bias)", r"blocks.\1.attention.input_norm.\2"),
        rule(layer + r"attn\.([qk])_proj\.weight", A + r".\2.weight", op=turned),
        rule(layer + r"attn\.v_proj\.weight", A + ".v.weight"),
        rule(layer + r"attn\.out_proj\.weight", A + ".out.weight"),
        rule(layer + r"mlp\.fc_in\.(weight|bias)", F + r".up.\2"),
        rule(layer + r"mlp\.fc_out\.(weight|bias)", F + r".down.\2"),
        *head_rules(hf, False, bias=True),
    ]


# --- GPT-NeoX and Pythia (arXiv 2204.06745, 2304.01373): parallel with two norms; q, k, v of a head stand together


def gpt_neox_overrides(hf: HfConfig) -> list[str]:
    bias = bool(hf.get("attention_bias", True))
    parameters = rope_parameters(hf, hf.get("rotary_emb_base", 10000))
    return [
        *sizes(hf),
        option("norm.eps", hf.get("layer_norm_eps", 1e-5)),
        *([] if hf.get("use_parallel_residual", True) else ["residual=serial"]),
        *rope(hf, parameters, fraction=parameters.get("partial_rotary_factor", hf.get("rotary_pct", 0.25))),
        *([] if bias else biases(False, False)),
        *activation(hf, "hidden_act", "gelu", "gelu"),
        *feed_forward(hf["hidden_size"], hf["intermediate_size"], gated=False),
        *head(hf, False),
    ]


def gpt_neox_rules(hf: HfConfig) -> list[Rule]:
    heads, width = int(hf["num_attention_heads"]), head_dim(hf)
    p = r"(?:gpt_neox\.)?"
    layer = p + r"layers\.(\d+)\."
    cut = per_head(heads, width, width, width)
    unembed = r"(?:embed_out|lm_head)\.weight"
    return [
        skip(layer + r"attention\.(?:bias|masked_bias)"),
        rule(p + r"embed_in\.weight", TABLE),
        rule(p + r"final_layer_norm\.(weight|bias)", r"norm.\1"),
        rule(layer + r"input_layernorm\.(weight|bias)", r"blocks.\1.attention.input_norm.\2"),
        rule(layer + r"post_attention_layernorm\.(weight|bias)", r"blocks.\1.ffn.input_norm.\2"),
        rule(layer + r"attention\.query_key_value\.(weight|bias)", A + r".q.\2", A + r".k.\2", A + r".v.\2", op=cut),
        rule(layer + r"attention\.dense\.(weight|bias)", A + r".out.\2"),
        rule(layer + r"mlp\.dense_h_to_4h\.(weight|bias)", F + r".up.\2"),
        rule(layer + r"mlp\.dense_4h_to_h\.(weight|bias)", F + r".down.\2"),
        tied(unembed, TABLE) if is_tied(hf, False) else rule(unembed, "head.unembed.weight"),
    ]


# --- Falcon (arXiv 2311.16867): 7B multi-query with one norm, 40B grouped with two, RW serial with ALiBi


def falcon_arch(hf: HfConfig) -> str:
    if hf.get("alibi", False):
        return "falcon_rw"
    return "falcon_40b" if hf.get("new_decoder_architecture", False) else "falcon_7b"


def falcon_kv_heads(hf: HfConfig) -> int:
    heads = int(hf["num_attention_heads"])
    if hf.get("new_decoder_architecture", False):
        return int(hf.get("num_kv_heads", heads))
    return 1 if hf.get("multi_query", True) else heads


def falcon_residual(hf: HfConfig) -> str:
    """serial, parallel, or parallel with one norm for both branches."""
    new = hf.get("new_decoder_architecture", False)
    if not hf.get("parallel_attn", True):
        return "serial"
    return "parallel" if hf.get("num_ln_in_parallel_attn", 2 if new else 1) == 2 else "parallel_shared"


FALCON = {"falcon_7b": ("parallel_shared", "mqa", False), "falcon_40b": ("parallel", "gqa", False), "falcon_rw": ("serial", "mha", True)}
"""What each arch has by itself: residual, attention, biases."""


def falcon_overrides(hf: HfConfig) -> list[str]:
    width, heads, bias = hf["hidden_size"], hf["num_attention_heads"], bool(hf.get("bias", False))
    residual, kind, biased = FALCON[falcon_arch(hf)]
    return [
        *sizes(hf),
        option("norm.eps", hf.get("layer_norm_epsilon", 1e-5)),
        *([] if falcon_residual(hf) == residual else [f"residual={falcon_residual(hf)}"]),
        *([] if hf.get("alibi", False) else rope(hf, rope_parameters(hf))),
        *key_heads(falcon_kv_heads(hf), heads, kind),
        *([] if bias == biased else [*biases(bias, bias), option("ffn.up_bias", bias), option("ffn.down_bias", bias)]),
        *activation(hf, "activation", "gelu", "gelu"),
        *feed_forward(width, hf.get("ffn_hidden_size", 4 * width), gated=False),
        *head(hf, True),
    ]


def falcon_rules(hf: HfConfig) -> list[Rule]:
    heads, kv_heads, width = int(hf["num_attention_heads"]), falcon_kv_heads(hf), head_dim(hf)
    cut = per_head(kv_heads, heads // kv_heads * width, width, width)
    p = r"(?:transformer\.)?"
    layer = p + r"h\.(\d+)\."
    return [
        rule(p + r"word_embeddings\.weight", TABLE),
        rule(p + r"ln_f\.(weight|bias)", r"norm.\1"),
        rule(layer + r"(?:input_layernorm|ln_attn)\.(weight|bias)", r"blocks.\1.attention.input_norm.\2"),
        rule(layer + r"(?:post_attention_layernorm|ln_mlp)\.(weight|bias)", r"blocks.\1.ffn.input_norm.\2"),
        rule(layer + r"self_attention\.query_key_value\.(weight|bias)", A + r".q.\2", A + r".k.\2", A + r".v.\2", op=cut),
        rule(layer + r"self_attention\.dense\.(weight|bias)", A + r".out.\2"),
        rule(layer + r"mlp\.dense_h_to_4h\.(weight|bias)", F + r".up.\2"),
        rule(layer + r"mlp\.dense_4h_to_h\.(weight|bias)", F + r".down.\2"),
        *head_rules(hf, True),
    ]


# --- BLOOM (arXiv 2211.05100): a norm on the embedding, ALiBi; q, k, v of a head stand together


def bloom_config(hf: HfConfig) -> HfConfig:
    """Both spellings of its sizes as one."""
    names = {"hidden_size": "n_embed", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}
    both = {name: hf.get(name, hf.get(other)) for name, other in names.items()}
    return HfConfig({**hf.raw, **both, "seq_length": hf.get("seq_length", 2048)})


def bloom_overrides(hf: HfConfig) -> list[str]:
    hf.only("apply_residual_connection_post_layernorm", [False], False)
    known = bloom_config(hf)
    width, eps = known["hidden_size"], hf.get("layer_norm_epsilon", 1e-5)
    return [
        *sizes(known, depth="n_layer", heads="n_head", context="seq_length"),
        option("norm.eps", eps),
        option("embedding.norm.eps", eps),
        *feed_forward(width, 4 * width, gated=False),
        *head(hf, True),
    ]


def bloom_rules(hf: HfConfig) -> list[Rule]:
    known = bloom_config(hf)
    width = head_dim(known, "hidden_size", "n_head")
    cut = per_head(int(known["n_head"]), width, width, width)
    p = r"(?:transformer\.)?"
    layer = p + r"h\.(\d+)\."
    return [
        rule(p + r"word_embeddings\.weight", TABLE),
        rule(p + r"word_embeddings_layernorm\.(weight|bias)", r"embedding.norm.\1"),
        rule(p + r"ln_f\.(weight|bias)", r"norm.\1"),
        rule(layer + r"input_layernorm\.(weight|bias)", r"blocks.\1.attention.input_norm.\2"),
        rule(layer + r"post_attention_layernorm\.(weight|bias)", r"blocks.\1.ffn.input_norm.\2"),
        rule(layer + r"self_attention\.query_key_value\.(weight|bias)", A + r".q.\2", A + r".k.\2", A + r".v.\2", op=cut),
        rule(layer + r"self_attention\.dense\.(weight|bias)", A + r".out.\2"),
        rule(layer + r"mlp\.dense_h_to_4h\.(weight|bias)", F + r".up.\2"),
        rule(layer + r"mlp\.dense_4h_to_h\.(weight|bias)", F + r".down.\2"),
        *head_rules(hf, True),
    ]


# --- MPT (MosaicML 2023): ALiBi, no bias anywhere, q, k and v clipped


def mpt_attention(hf: HfConfig) -> HfConfig:
    return HfConfig(hf.get("attn_config", {}))


def mpt_overrides(hf: HfConfig) -> list[str]:
    inner = mpt_attention(hf)
    inner.only("attn_type", ["multihead_attention"], "multihead_attention")
    inner.only("alibi", [True], True)
    inner.only("alibi_bias_max", [8], 8)
    inner.only("qk_ln", [False], False)
    inner.only("prefix_lm", [False], False)
    hf.only("no_bias", [True], True)
    hf.only("logit_scale", [None], None)
    hf.only("expansion_ratio", [4], 4)
    hf.problems += inner.problems
    width = hf["d_model"]
    return [
        *sizes(hf, width="d_model", depth="n_layers", heads="n_heads", context="max_seq_len"),
        option("norm.eps", hf.get("layer_norm_epsilon", 1e-5)),
        option("attention.clip", inner.get("clip_qkv", math.inf)),
        option("attention.scale", inner.get("softmax_scale")),
        *feed_forward(width, 4 * width, gated=False),
        *head(hf, True),
    ]


def mpt_rules(hf: HfConfig) -> list[Rule]:
    width = int(hf["d_model"])
    p = r"(?:transformer\.)?"
    layer = p + r"blocks\.(\d+)\."
    return [
        rule(p + r"wte\.weight", TABLE),
        rule(p + r"norm_f\.weight", "norm.weight"),
        rule(layer + r"norm_1\.weight", r"blocks.\1.attention.input_norm.weight"),
        rule(layer + r"norm_2\.weight", r"blocks.\1.ffn.input_norm.weight"),
        rule(layer + r"attn\.Wqkv\.weight", A + ".q.weight", A + ".k.weight", A + ".v.weight", op=rows(width, width, width)),
        rule(layer + r"attn\.out_proj\.weight", A + ".out.weight"),
        rule(layer + r"ffn\.(up|down)_proj\.weight", F + r".\2.weight"),
        *head_rules(hf, True),
    ]


# --- the Llama spelling: Phi, Cohere, OLMo, StableLM, StarCoder 2, Nemotron


LAYER = r"model\.layers\.(\d+)\."


def llama_rules(hf: HfConfig, tie: bool, *, bias_of_head: bool = False, gated: bool = True) -> list[Rule]:
    """What all of them name alike. A norm that a family lacks has no tensor, and its rule does nothing."""
    up = [rule(LAYER + r"mlp\.(gate|up|down)_proj\.(weight|bias)", F + r".\2.\3")]
    return [
        rule(r"model\.embed_tokens\.weight", TABLE),
        rule(r"model\.norm\.(weight|bias)", r"norm.\1"),
        rule(LAYER + r"input_layernorm\.(weight|bias)", r"blocks.\1.attention.input_norm.\2"),
        rule(LAYER + r"post_attention_layernorm\.(weight|bias)", r"blocks.\1.ffn.input_norm.\2"),
        rule(LAYER + r"self_attn\.([qkv])_proj\.(weight|bias)", A + r".\2.\3"),
        rule(LAYER + r"self_attn\.o_proj\.(weight|bias)", A + r".out.\2"),
        *(up if gated else []),
        *head_rules(hf, tie, bias_of_head),
    ]


def phi_overrides(hf: HfConfig) -> list[str]:
    hf.only("tie_word_embeddings", [False], False)
    eps, parameters = hf.get("layer_norm_eps", 1e-5), rope_parameters(hf)
    normalised = ["attention/qk_norm=head_layernorm", option("attention.qk_norm.norm.eps", eps)]
    return [
        *sizes(hf),
        option("norm.eps", eps),
        *rope(hf, parameters, fraction=parameters.get("partial_rotary_factor", hf.get("partial_rotary_factor", 0.5))),
        *grouped(hf, "mha"),
        *(normalised if hf.get("qk_layernorm", False) else []),
        *activation(hf, "hidden_act", "gelu_new", "gelu_tanh"),
        *feed_forward(hf["hidden_size"], hf["intermediate_size"], gated=False),
    ]


def phi_rules(hf: HfConfig) -> list[Rule]:
    return [
        rule(LAYER + r"self_attn\.dense\.(weight|bias)", A + r".out.\2"),
        rule(LAYER + r"self_attn\.([qk])_layernorm\.(weight|bias)", A + r".qk_norm.\2.\3"),
        rule(LAYER + r"mlp\.fc1\.(weight|bias)", F + r".up.\2"),
        rule(LAYER + r"mlp\.fc2\.(weight|bias)", F + r".down.\2"),
        rule(r"model\.final_layernorm\.(weight|bias)", r"norm.\1"),
        *llama_rules(hf, False, bias_of_head=True, gated=False),
    ]


def cohere_common(hf: HfConfig, theta: float) -> list[str]:
    hf.only("hidden_act", ["silu"], "silu")
    bias = bool(hf.get("attention_bias", False))
    return [
        *sizes(hf),
        option("norm.eps", hf.get("layer_norm_eps", 1e-5)),
        *rope(hf, rope_parameters(hf, theta)),
        *grouped(hf, "gqa"),
        *(biases(True, True) if bias else []),
        *feed_forward(hf["hidden_size"], hf["intermediate_size"], gated=True),
        *head(hf, True),
        option("head.scale", hf.get("logit_scale", 0.0625)),
    ]


WITHOUT_QK_NORM = ["~attention.qk_norm", "attention.qk_norm.kind=none"]


def cohere_overrides(hf: HfConfig) -> list[str]:
    normalised = [option("attention.qk_norm.norm.eps", hf.get("layer_norm_eps", 1e-5))]
    return [*cohere_common(hf, 500000.0), *(normalised if hf.get("use_qk_norm", False) else WITHOUT_QK_NORM)]


def cohere2_overrides(hf: HfConfig) -> list[str]:
    depth, pattern = int(hf["num_hidden_layers"]), int(hf.get("sliding_window_pattern", 4))
    kinds = hf.get("layer_types") or ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(depth)]
    local = [i for i, kind in enumerate(kinds) if kind == "sliding_attention"]
    return [
        *cohere_common(hf, 10000.0),
        *windowed(local, limit(hf, hf.get("sliding_window", 4096)), [layer for layer in range(depth) if (layer + 1) % 4]),
        *layers_where("nope", [layer for layer in range(depth) if layer not in local], range(3, depth, 4)),
    ]


def cohere_rules(hf: HfConfig) -> list[Rule]:
    """Rotated pairs stand side by side, in the rows of q and k and in the weights of their norms."""
    (heads, kv_heads), width = group_size(hf), head_dim(hf)
    return [
        rule(LAYER + r"self_attn\.q_proj\.(weight|bias)", A + r".q.\2", op=halved(heads, width)),
        rule(LAYER + r"self_attn\.k_proj\.(weight|bias)", A + r".k.\2", op=halved(kv_heads, width)),
        rule(LAYER + r"self_attn\.([qk])_norm\.weight", A + r".qk_norm.\2.weight", op=reordered(pair_order(width), 1)),
        *llama_rules(hf, True),
    ]


def olmo_overrides(hf: HfConfig) -> list[str]:
    hf.only("hidden_act", ["silu"], "silu")
    bias = bool(hf.get("attention_bias", False))
    return [
        *sizes(hf),
        option("norm.eps", TORCH_EPS),
        *rope(hf, rope_parameters(hf)),
        *grouped(hf, "mha"),
        *(biases(True, True) if bias else []),
        option("attention.clip", hf.get("clip_qkv", math.inf)),
        *feed_forward(hf["hidden_size"], hf["intermediate_size"], gated=True),
        *head(hf, False),
    ]


def olmo_rules(hf: HfConfig) -> list[Rule]:
    return llama_rules(hf, False)


def stablelm_arch(hf: HfConfig) -> str:
    return "stablelm_parallel" if hf.get("use_parallel_residual", False) else "stablelm"


def stablelm_overrides(hf: HfConfig) -> list[str]:
    hf.only("hidden_act", ["silu"], "silu")
    eps, parameters = hf.get("layer_norm_eps", 1e-5), rope_parameters(hf)
    is_parallel, normed = stablelm_arch(hf) == "stablelm_parallel", bool(hf.get("qk_layernorm", False))
    chosen = ["attention/qk_norm=per_head_layernorm_no_bias"] if is_parallel else []
    return [
        *sizes(hf),
        option("norm.eps", eps),
        *rope(hf, parameters, fraction=parameters.get("partial_rotary_factor", hf.get("partial_rotary_factor", 0.25))),
        *grouped(hf, "gqa"),
        *changed("attention.qkv_bias", bool(hf.get("use_qkv_bias", False)), not is_parallel),
        *([*chosen, option("attention.qk_norm.norm.eps", eps)] if normed else [] if is_parallel else WITHOUT_QK_NORM),
        *feed_forward(hf["hidden_size"], hf["intermediate_size"], gated=True),
        *head(hf, False),
    ]


def stablelm_rules(hf: HfConfig) -> list[Rule]:
    return [
        rule(LAYER + r"self_attn\.([qk])_layernorm\.norms\.(\d+)\.weight", A + r".qk_norm.\2.weight[\3]"),
        *llama_rules(hf, False),
    ]


def starcoder2_overrides(hf: HfConfig) -> list[str]:
    bias = bool(hf.get("use_bias", True))
    return [
        *sizes(hf),
        option("norm.eps", hf.get("norm_epsilon", 1e-5)),
        *rope(hf, rope_parameters(hf)),
        *grouped(hf, "gqa"),
        *([] if bias else [*biases(False, False), "ffn.up_bias=false", "ffn.down_bias=false"]),
        option("attention.window", limit(hf, hf.get("sliding_window"))),
        *activation(hf, "hidden_act", "gelu_pytorch_tanh", "gelu_tanh"),
        *feed_forward(hf["hidden_size"], hf["intermediate_size"], gated=False),
        *head(hf, True),
    ]


def starcoder2_rules(hf: HfConfig) -> list[Rule]:
    return [
        rule(LAYER + r"mlp\.c_fc\.(weight|bias)", F + r".up.\2"),
        rule(LAYER + r"mlp\.c_proj\.(weight|bias)", F + r".down.\2"),
        *llama_rules(hf, True, gated=False),
    ]


def nemotron_overrides(hf: HfConfig) -> list[str]:
    parameters = rope_parameters(hf)
    return [
        *sizes(hf),
        option("norm.eps", hf.get("norm_eps", 1e-5)),
        *rope(hf, parameters, fraction=parameters.get("partial_rotary_factor", hf.get("partial_rotary_factor", 0.5))),
        *grouped(hf, "gqa"),
        option("attention.head_dim", hf.get("head_dim")),
        *(biases(True, True) if hf.get("attention_bias", False) else []),
        *(["ffn.up_bias=true", "ffn.down_bias=true"] if hf.get("mlp_bias", False) else []),
        *activation(hf, "hidden_act", "relu2", "relu2"),
        *feed_forward(hf["hidden_size"], hf["intermediate_size"], gated=False),
        *head(hf, False),
    ]


FAMILIES = [
    Family("gpt2", "gpt2", gpt2_overrides, gpt2_rules),
    Family("openai-gpt", "gpt1", gpt1_overrides, gpt1_rules),
    Family("opt", opt_arch, opt_overrides, opt_rules),
    Family("marian", "transformer_2017", marian_overrides, marian_rules),
    Family("bert", "bert", bert_overrides, bert_rules),
    Family("gpt_neo", "gpt_neo", gpt_neo_overrides, gpt_neo_rules),
    Family("gptj", "gptj", gptj_overrides, gptj_rules),
    Family("gpt_neox", "gpt_neox", gpt_neox_overrides, gpt_neox_rules),
    Family("falcon", falcon_arch, falcon_overrides, falcon_rules),
    Family("bloom", "bloom", bloom_overrides, bloom_rules),
    Family("mpt", "mpt", mpt_overrides, mpt_rules),
    Family("phi", "phi", phi_overrides, phi_rules),
    Family("cohere", "cohere", cohere_overrides, cohere_rules),
    Family("cohere2", "cohere2", cohere2_overrides, cohere_rules),
    Family("olmo", "olmo", olmo_overrides, olmo_rules),
    Family("stablelm", stablelm_arch, stablelm_overrides, stablelm_rules),
    Family("starcoder2", "starcoder2", starcoder2_overrides, starcoder2_rules),
    Family("nemotron", "nemotron", nemotron_overrides, olmo_rules),
]
