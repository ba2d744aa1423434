"""The verb `count`: what a config costs, counted from its built model."""

from __future__ import annotations

from rich.table import Table

from ablate.composition import compose
from ablate.config import Config, meta_model
from ablate.flags import split_flags
from ablate.matching import match_line
from ablate.model.attention import Attention
from ablate.model.count import count as count_model
from ablate.model.ffn import FeedForward
from ablate.train.launch import plain_console

NORM_SITES = {"input_norm", "output_norm", "residual_norm"}
KIND_OF_PART = {"attention": Attention, "feed-forward": FeedForward}


def count(overrides: list[str]) -> int:
    """Prints parameters, FLOPs a token and cache bytes a token of a config.

    Takes overrides as training does, and --config-dir: ablate count arch=gemma2 scale=124m
    """
    flags, rest = split_flags(overrides)
    cfg = compose(rest, config_name=flags.config_name, config_dir=flags.config_dir)
    console = plain_console()
    console.print(count_table(cfg))
    if line := match_line(cfg):
        console.print(line)
    return 0


def count_table(cfg: Config) -> Table:
    model = meta_model(cfg)
    counts = count_model(model, cfg.model.context)
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(justify="left")
    table.add_column(justify="right")

    def row(name: str, value: str) -> None:
        table.add_row(name, value)

    row("parameters", f"{counts.parameters:,}")
    row("  embedding", f"{counts.embedding:,}")
    row("  active for a token", f"{counts.active:,}")
    for name, kind in KIND_OF_PART.items():
        sizes = [sum(p.numel() for p in part.parameters()) for part in model.modules() if isinstance(part, kind)]
        row(f"  {name}, a layer", f"{sizes[0]:,}")
    norms = sum(p.numel() for name, p in model.blocks.named_parameters() if set(name.split(".")) & NORM_SITES)
    row("  norms of the layers", f"{norms:,}")
    row("feed-forward width", f"{counts.ffn_width:,}")
    row("  parameters against a plain MLP of its ratio", f"{counts.ffn_parameter_error:+.2%}")
    row("FLOPs a token, forward", f"{counts.flops_per_token:,.0f}")
    row("FLOPs a token, training", f"{counts.training_flops_per_token:,.0f}")
    row(f"FLOPs of the run of {cfg.train.tokens:,} tokens", f"{counts.training_flops_per_token * cfg.steps * cfg.batch_tokens:.3e}")
    row("KV-cache bytes a token, bfloat16", f"{counts.kv_bytes_per_token():,}")
    row(f"KV-cache bytes at {cfg.model.context:,} tokens", f"{counts.kv_bytes():,}")
    return table
