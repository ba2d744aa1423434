"""argv -> a verb, or Hydra: train."""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import signal
import sys
from collections.abc import Sequence

from ablate.errors import ConfigError, NotNow, did_you_mean, told
from ablate.flags import AS_TYPED, flag_words, split_flags

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
    "report": ("ablate.report.command", "a page with verdicts of a study, of any runs, or of runs on W&B"),
    "compare": ("ablate.report.command", "two runs or two studies: what differs, and what it does"),
}
"""verb -> the module whose function of the same name takes the rest of argv and gives the exit code; and what it does."""

WITHOUT_FLAGS = ("count", "sync")
"""Verbs that take overrides alone; the others answer --help themselves."""

FAILED, BAD_INPUT, TEMPORARY = 1, 2, 75


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
        if os.environ.get("RANK", "0") == "0":  # of the processes of one run the first speaks
            print(f"ablate: {error}", file=sys.stderr)
        return BAD_INPUT
    except NotNow as error:
        print(f"ablate: {error}", file=sys.stderr)
        return TEMPORARY
    except OSError as error:
        if (said := told(error)) is None:
            raise
        print(f"ablate: {said}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("ablate: interrupted", file=sys.stderr)
        return 130


def run_verb(verb: str, rest: list[str]) -> int:
    if verb not in VERBS:
        message = f"no such verb; allowed: {', '.join(VERBS)}, or overrides such as norm=layernorm{did_you_mean(verb, VERBS)}"
        raise ConfigError.at(verb, message)
    end_with_the_pipe()
    module, what = VERBS[verb]
    carry_out = getattr(importlib.import_module(module), verb)
    if verb in WITHOUT_FLAGS and {"-h", "--help"} & set(rest):
        print(f"ablate {verb}: {what}\n\n{inspect.cleandoc(carry_out.__doc__)}")
        return 0
    code: int = carry_out(rest)
    return code


def hydra_or_train(arguments: list[str]) -> int:
    """Trains; Hydra itself answers what its flags ask (--help, --cfg, --info, --shell-completion)."""
    flags, overrides = split_flags(arguments)
    from ablate.composition import Request, normalise_request, parse_request
    from ablate.matching import solved_overrides
    from ablate.sweep.typed import without_sweep

    words = [text for text in overrides if "=" not in text and not text.startswith("~")]
    if flags.help and words:
        raise ConfigError.at(words[0], "is no override: --help lists all axes and their variants; conf/AXIS/VARIANT.yaml has the options")
    if flags.help or flags.hydra_help or flags.version or flags.shell_completion:
        return ask_hydra(arguments)
    if flags.multirun or any(text.lstrip("+").startswith("sweep=") for text in overrides):
        return sweep(flags, arguments, overrides)
    if problems := list(without_sweep(overrides)):
        raise ConfigError(problems)
    asked = bool(flags.cfg) or flags.info is not None
    request = Request(overrides, flags.config_name, flags.config_dir, of_hydra=asked)
    if asked:
        solved = solved_overrides(parse_request(request))
        return ask_hydra([*flag_words(arguments), *normalise_request(request).overrides, *solved])
    cfg = parse_request(request)
    from ablate.train.launch import launch

    return launch(cfg, overrides, flags.config_dir)


def sweep(flags: argparse.Namespace, arguments: list[str], overrides: list[str]) -> int:
    """A grid or a study, by way of Hydra's multirun and our sweeper."""
    from ablate.sweep.typed import arguments_of_sweep

    if flags.cfg or flags.info is not None:
        flag = "--cfg" if flags.cfg else "--info"
        raise ConfigError.at(flag, "shows one config, of a command without -m; the plan of a sweep is shown by dry_run=true")
    kept = [word for word in flag_words(arguments) if word not in ("-m", "--multirun")]
    AS_TYPED[:] = arguments
    return call_hydra([*kept, "--multirun", *arguments_of_sweep(overrides, flags.config_name, flags.config_dir)])


def ask_hydra(arguments: list[str]) -> int:
    """Hydra's own answers."""
    end_with_the_pipe()
    return call_hydra(arguments)


def call_hydra(arguments: list[str]) -> int:
    """`python -m ablate` and the console script are the same to it."""
    import hydra

    from ablate.composition import HYDRA_VERSION_BASE
    from ablate.shipped import conf_dir

    sys.argv = ["ablate", *arguments]
    hydra.main(config_path=str(conf_dir()), config_name="config", **HYDRA_VERSION_BASE)(lambda cfg: None)()
    return 0


def end_with_the_pipe() -> None:
    """`ablate --help | head` ends in silence, as other commands do. Training does not: it goes on to its result."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def console_script() -> None:
    sys.exit(main())
