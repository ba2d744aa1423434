"""Families of GPT and of the Transformer, whose positions are in a table: GPT-2, GPT, OPT, Marian, BERT, GPT-Neo."""

from __future__ import annotations

import torch

from ablate.pretrained.layernorm import GPT_SIZES, PLACES, TABLE, TORCH_EPS, A, F, biases, head, head_rules, is_tied, limit, windowed
from ablate.pretrained.tables import (
    Family,
    HfConfig,
    Rule,
    activation,
    chain,
    changed,
    feed_forward,
    fold,
    only_first,
    option,
    reordered,
    rows,
    rule,
    sizes,
    skip,
    tied,
    transpose,
    without_first,
)

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


FAMILIES = [
    Family("gpt2", "gpt2", gpt2_overrides, gpt2_rules),
    Family("openai-gpt", "gpt1", gpt1_overrides, gpt1_rules),
    Family("opt", opt_arch, opt_overrides, opt_rules),
    Family("marian", "transformer_2017", marian_overrides, marian_rules),
    Family("bert", "bert", bert_overrides, bert_rules),
    Family("gpt_neo", "gpt_neo", gpt_neo_overrides, gpt_neo_rules),
]
