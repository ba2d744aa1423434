"""Word -> variant. A variant's signature is its schema: what stands after the star is what an experimenter chooses.

    @NORM.register("rmsnorm")
    class RMSNorm(nn.Module):
        def __init__(self, dim: int, *, eps: Positive) -> None: ...

`conf/norm/rmsnorm.yaml` then says `kind: rmsnorm` and a value for every option; there are no defaults in code.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model

T = TypeVar("T")


class Options(BaseModel):
    """The typed options of one variant; `kind` is its word."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    kind: str


def _yaml_number(value: object) -> object:
    """'.inf' -> infinity: on the command line Hydra takes YAML's own spelling for a word."""
    spelled = {".inf": math.inf, "-.inf": -math.inf, ".nan": math.nan}
    return spelled.get(value, value) if isinstance(value, str) else value


def _fraction(value: object) -> object:
    """'8/3' -> 2.666..., so that ratios can be written as they are published."""
    if isinstance(value, str):
        try:
            return float(Fraction(value.replace(" ", "")))
        except (ValueError, ZeroDivisionError):
            return value
    return value


def _not_nan(value: float) -> float:
    if math.isnan(value):
        raise ValueError("must be a number, not NaN")
    return value


Number = Annotated[float, BeforeValidator(_yaml_number), AfterValidator(_not_nan)]
Positive = Annotated[Number, Field(gt=0)]
"""A float above 0; `.inf` is allowed and means "no limit" where an option says so."""
NonNegative = Annotated[Number, Field(ge=0)]
Share = Annotated[Number, Field(ge=0, le=1)]
"""A float in [0, 1]."""
PositiveShare = Annotated[Number, Field(gt=0, le=1)]
"""A float above 0 and at most 1."""
Ratio = Annotated[float, BeforeValidator(_fraction), AfterValidator(_not_nan), Field(gt=0, lt=1e6)]
"""A float above 0 that may be written as a fraction: 8/3."""
Count = Annotated[int, Field(ge=1)]
"""An integer of at least 1."""


class Registry(Generic[T]):
    """All variants of one axis, by word."""

    def __init__(self, axis: str) -> None:
        self.axis = axis
        self._variants: dict[str, Callable[..., T]] = {}

    def register(self, word: str) -> Callable[[type[T]], type[T]]:
        """Class decorator: makes the class the variant `word` of this axis."""

        def add(variant: type[T]) -> type[T]:
            assert word not in self._variants, f"{self.axis} {word!r} is registered twice"
            self._variants[word] = variant
            return variant

        return add

    def words(self) -> list[str]:
        return sorted(self._variants)

    def variant(self, word: str) -> Any:
        """The registered class."""
        return self._variants[word]

    def options(self, word: str) -> type[Options]:
        """The pydantic model of a variant's options, made from its signature."""
        variant = self._variants[word]
        init = variant.__init__ if inspect.isclass(variant) else variant
        hints = get_type_hints(init, include_extras=True)
        fields: dict[str, Any] = {"kind": (Literal[word], ...)}
        for name, parameter in inspect.signature(variant).parameters.items():
            if parameter.kind is parameter.KEYWORD_ONLY:
                assert parameter.default is parameter.empty, f"{self.axis} {word}: {name} has its default in YAML, not in code"
                fields[name] = (_resolve(hints[name]), ...)
        return create_model(f"{self.axis}_{word}", __base__=Options, **fields)

    def choice(self) -> Any:
        """The type of a config field that holds any variant of this axis."""
        models = tuple(self.options(word) for word in self.words())
        assert models, f"no variant of {self.axis} is registered"
        if len(models) == 1:
            return models[0]
        return Annotated[Union[models], Field(discriminator="kind")]  # noqa: UP007

    def build(self, options: Options, *known: Any, **known_by_name: Any) -> T:
        """The variant that `options` names; what the model knows comes first, the options follow."""
        chosen = {name: getattr(options, name) for name in type(options).model_fields if name != "kind"}
        return self._variants[options.kind](*known, **known_by_name, **chosen)


def _resolve(hint: Any) -> Any:
    """`Annotated[Options, NORM]` in a signature means: any variant of NORM, with its own options."""
    if get_origin(hint) is Annotated:
        for mark in get_args(hint)[1:]:
            if isinstance(mark, Registry):
                return mark.choice()
    return hint
