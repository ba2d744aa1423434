"""The one error for what a person typed: every problem at once, each with its cure."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Problem:
    """One wrong key or file: where it is, and what came, what is allowed and the nearest right spelling."""

    key: str
    message: str


class ConfigError(Exception):
    """Bad input of a person; carries every problem found. The command line prints it and exits with code 2."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(problems)
        assert self.problems, "a ConfigError needs a problem"
        super().__init__(str(self))

    @classmethod
    def at(cls, key: str, message: str) -> ConfigError:
        """The error with a single problem."""
        return cls([Problem(key, message)])

    def __str__(self) -> str:
        count = len(self.problems)
        width = max(len(problem.key) for problem in self.problems)
        lines = [f"  {problem.key:<{width}}  {problem.message}" for problem in self.problems]
        return "\n".join([f"{count} problem{'s' if count > 1 else ''} with what was asked:", *lines])


ALLOWED = {
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be keys with values",
    "model_type": "must be keys with values",
    "model_attributes_type": "must be keys with values",
    "string_type": "must be a text",
}
"""Type of a pydantic error -> what to say of it."""


def asked_for(detail: Mapping[str, Any]) -> str:
    """What a pydantic error wants, as it is said here: `must be greater than 0`."""
    if detail["type"] in ("too_short", "too_long"):
        least = detail["type"] == "too_short"
        count = detail["ctx"]["min_length" if least else "max_length"]
        return f"must have at {'least' if least else 'most'} {count} value{'s' * (count != 1)}"
    message = detail["msg"].removeprefix("Value error, ").replace("Input should be a valid", "must be a valid")
    return ALLOWED.get(detail["type"], message.replace("Input should", "must"))


class NotNow(Exception):
    """Something outside that does not answer for now. The command line prints it and exits with code 75: the same command later goes on."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'rmsnorm'?` when a known word is near, else nothing."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR)


def told(error: OSError) -> str | None:
    """What a person is told of a disk that is full, read-only or not theirs; None for what is no such thing."""
    if error.errno not in CANNOT_WRITE:
        return None
    return f"{error.filename2 or error.filename or 'a file'}: {(error.strerror or str(error)).lower()}"
