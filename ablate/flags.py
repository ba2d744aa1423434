"""Hydra's flags on a command line, told from the overrides between them."""

from __future__ import annotations

import argparse

from ablate.errors import ConfigError, did_you_mean

AS_TYPED: list[str] = []
"""The command line of this process as a person typed it, where it is given on in another form."""


def split_flags(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Hydra's flags, and the overrides between them."""
    parser = argparse.ArgumentParser(prog="ablate", add_help=False, allow_abbrev=False, exit_on_error=False)
    for names in (["--help", "-h"], ["--hydra-help"], ["--version"], ["--shell-completion", "-sc"], ["--resolve"], ["--run", "-r"]):
        parser.add_argument(*names, action="store_true")
    parser.add_argument("--multirun", "-m", action="store_true")
    parser.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
    parser.add_argument(
        "--info", "-i", nargs="?", const="all", choices=["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"]
    )
    parser.add_argument("--package", "-p")
    parser.add_argument("--config-name", "-cn", default="config")
    parser.add_argument("--config-dir", "-cd")
    try:
        flags, rest = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise ConfigError.at(str(error.argument_name), error.message) from None
    unknown = [word for word in rest if word.startswith("-")]
    if unknown and not flags.shell_completion:
        known = [option for action in parser._actions for option in action.option_strings]
        raise ConfigError.at(unknown[0], f"no such flag; allowed: {', '.join(known)}{did_you_mean(unknown[0], known)}")
    return flags, rest


def flag_words(arguments: list[str]) -> list[str]:
    """The command line less its overrides."""
    overrides = set(split_flags(arguments)[1])
    return [word for word in arguments if word not in overrides]
