"""argv -> a verb, or Hydra: train."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence

from ablate.errors import ConfigError, did_you_mean

VERBS = {
    "bench": ("ablate.bench", "steps of two configs in one process; our loop against a bare one; the peak of matrix products"),
    "count": ("ablate.counting", "parameters, FLOPs and cache bytes of a config"),
    "extrapolate": ("ablate.extrapolation", "losses of finished runs at 1, 2 and 4 times the context of training"),
    "sync": ("ablate.trackers", "replay run directories to W&B"),
    "status": ("ablate.sweep.verbs", "the runs of a study: state, progress, loss, place in the queue"),
    "wait": ("ablate.sweep.verbs", "stays until a study has ended"),
    "logs": ("ablate.sweep.verbs", "what a run has said"),
    "cancel": ("ablate.sweep.verbs", "takes the runs of a study out of the queue and stops those that run"),
    "retry": ("ablate.sweep.verbs", "runs again what crashed, was killed or lost"),
}
"""verb -> the module whose function of the same name takes the rest of argv and gives the exit code; and what it does."""

BAD_INPUT = 2


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code; what a person typed wrongly is one message and code 2, never a traceback."""
    # Before PyTorch loads: waiting threads that spin take the cores from whoever else works on them. Beside one busy process, a step of
    # two spinning threads took 10 s, one of two sleeping threads 0.3 s.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments and "=" not in arguments[0] and arguments[0][:1].isalpha():
            return run_verb(arguments[0], arguments[1:])
        return hydra_or_train(arguments)
    except ConfigError as error:
        print(f"ablate: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("ablate: interrupted", file=sys.stderr)
        return 130


def run_verb(verb: str, rest: list[str]) -> int:
    if verb not in VERBS:
        message = f"no such verb; allowed: {', '.join(VERBS)}, or overrides such as norm=layernorm{did_you_mean(verb, VERBS)}"
        raise ConfigError.at(verb, message)
    end_with_the_pipe()
    module, _ = VERBS[verb]
    code: int = getattr(importlib.import_module(module), verb)(rest)
    return code


def hydra_or_train(arguments: list[str]) -> int:
    """Trains; Hydra itself answers what its flags ask (--help, --cfg, --info, --shell-completion)."""
    flags, overrides = split_flags(arguments)
    if flags.multirun or any(text.startswith("sweep=") for text in overrides):
        return sweep(flags, arguments, overrides)
    from ablate.composition import Request, normalise_request, parse_request
    from ablate.matching import solved_overrides

    if flags.help or flags.hydra_help or flags.version or flags.shell_completion:
        return ask_hydra(arguments)
    asked = bool(flags.cfg) or flags.info is not None
    request = Request(overrides, flags.config_name, flags.config_dir, of_hydra=asked)
    if asked:
        solved = solved_overrides(parse_request(request))
        return ask_hydra([*flag_words(arguments), *normalise_request(request).overrides, *solved])
    cfg = parse_request(request)
    from ablate.train.launch import launch

    return launch(cfg, overrides, flags.config_dir)


SWEEP_KEYS = ("sweep", "study", "dry_run", "yes", "wait", "measure", "ask_above_hours")
"""Keys of hydra.sweeper that are typed bare."""


def sweep(flags: argparse.Namespace, arguments: list[str], overrides: list[str]) -> int:
    """A grid or a study, by way of Hydra's multirun and our sweeper."""
    from ablate.composition import Request, normalise_request
    from ablate.sweep.launchers import OURS, not_ours

    asked = {key: text for text in overrides for key in SWEEP_KEYS if text.lstrip("+").startswith(f"{key}=")}
    launcher = next((text.partition("=")[2] for text in overrides if text.lstrip("+").startswith("hydra/launcher=")), "local")
    if launcher not in OURS:
        raise not_ours(launcher)
    rest = [text for text in overrides if text not in asked.values()]
    request = normalise_request(Request(rest, flags.config_name, flags.config_dir, multirun=True, of_hydra=True))
    if request.problems:
        raise ConfigError(request.problems)
    kept = [word for word in flag_words(arguments) if word not in ("-m", "--multirun")]
    return ask_hydra([*kept, "--multirun", *(f"hydra.sweeper.{text.lstrip('+')}" for text in asked.values()), *request.overrides])


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


def ask_hydra(arguments: list[str]) -> int:
    """Hydra's own answers. `python -m ablate` and the console script are the same to it."""
    import hydra

    from ablate.composition import HYDRA_VERSION_BASE
    from ablate.shipped import conf_dir

    end_with_the_pipe()
    sys.argv = ["ablate", *arguments]
    hydra.main(config_path=str(conf_dir()), config_name="config", **HYDRA_VERSION_BASE)(lambda cfg: None)()
    return 0


def end_with_the_pipe() -> None:
    """`ablate --help | head` ends in silence, as other commands do. Training does not: it goes on to its result."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def console_script() -> None:
    sys.exit(main())
