"""Word -> variant. A variant's signature is its schema: what stands after the star is what an experimenter chooses.

    @NORM.register("rmsnorm")
    class RMSNorm(nn.Module):
        def __init__(self, dim: int, *, eps: Positive) -> None: ...

`conf/norm/rmsnorm.yaml` then says `kind: rmsnorm` and a value for every option; there are no defaults in code. Options that several
variants share stand in a TypedDict, and `**common: Unpack[Common]` adds them to a signature.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model

from ablate.errors import ConfigError

T = TypeVar("T")


class Section(BaseModel):
    """Typed values that belong together; what is not declared is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Options(Section):
    """The typed options of one variant; `kind` is its word."""

    kind: str
    nested: ClassVar[dict[str, Registry[Any]]] = {}  # options that hold a variant of another axis
    registry: ClassVar[Registry[Any]]


def _number(value: object) -> object:
    """'8/3' -> 2.666..., as ratios are published; '.inf' -> infinity: on the command line Hydra takes YAML's own spelling for a word."""
    if not isinstance(value, str):
        return value
    spelled = {".inf": math.inf, "-.inf": -math.inf, ".nan": math.nan}
    try:
        return spelled[value] if value in spelled else float(Fraction(value.replace(" ", "")))
    except (ValueError, ArithmeticError):
        return value


def _not_nan(value: float) -> float:
    if math.isnan(value):
        raise ValueError("must be a number, not NaN")
    return value


Number = Annotated[float, BeforeValidator(_number), AfterValidator(_not_nan)]
"""A float, which may be written as a fraction: 8/3. So may all that are made of it."""
Positive = Annotated[Number, Field(gt=0, allow_inf_nan=False)]
"""A finite float above 0."""
Limit = Annotated[Number, Field(gt=0)]
"""A float above 0, or `.inf` for no limit."""
NonNegative = Annotated[Number, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[Number, Field(ge=0, le=1)]
"""A float in [0, 1]."""
PositiveShare = Annotated[Number, Field(gt=0, le=1)]
"""A float above 0 and at most 1."""
Ratio = Annotated[Number, Field(gt=0, lt=1e6)]
"""A float above 0 and below a million."""
Count = Annotated[int, Field(ge=1)]
"""An integer of at least 1."""


def _size(value: object) -> object:
    """'1/2' -> 0.5; a number above 0 is a size: an integer as it is, or a share below 1."""
    value = _number(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
        if isinstance(value, int) or value < 1 or math.isinf(value):
            return value
        if value.is_integer():
            return int(value)
    raise ValueError("must be an integer above 0, or a share below 1 such as 1/2")


def _finite(value: int | float) -> int | float:
    if math.isinf(value):
        raise ValueError("must be an integer above 0, or a share below 1 such as 1/2")
    return value


LimitOrNone = Annotated[int | float, BeforeValidator(_size)]
"""A Size, or `.inf` for no limit."""
Size = Annotated[int | float, BeforeValidator(_size), AfterValidator(_finite)]
"""An integer of at least 1, or a share below 1 ("1/2") of what the option says."""


def sized(value: int | float, whole: int) -> int:
    """The number that a Size means: itself, or its share of `whole`, rounded, at least 1."""
    return value if isinstance(value, int) else max(1, round(value * whole))


class Registry(Generic[T]):
    """All variants of one axis, by word."""

    registered: ClassVar[list[tuple[str, str]]] = []
    """Of all axes, in order: a new norm is also a new option of attention, so models of options hold until it grows."""

    def __init__(self, axis: str) -> None:
        self.axis = axis
        self._variants: dict[str, Callable[..., T]] = {}
        self._models: dict[tuple[str, int], type[Options]] = {}

    def register(self, word: str) -> Callable[[type[T]], type[T]]:
        """Class decorator: makes the class the variant `word` of this axis."""

        def add(variant: type[T]) -> type[T]:
            assert word not in self._variants, f"{self.axis} {word!r} is registered twice"
            self._variants[word] = variant
            Registry.registered.append((self.axis, word))
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
        key = (word, len(Registry.registered))
        if key not in self._models:
            self._models[key] = self._model_of(word, variant)
        return self._models[key]

    def _model_of(self, word: str, variant: Callable[..., T]) -> type[Options]:
        hints = get_type_hints(variant.__init__ if inspect.isclass(variant) else variant, include_extras=True)
        fields: dict[str, Any] = {"kind": (Literal[word], ...)}
        nested: dict[str, Registry[Any]] = {}
        for name, hint in _chosen(variant, hints, f"{self.axis} {word}"):
            mark = _registry_of(hint)
            if mark is not None:
                nested[name] = mark
            fields[name] = (mark.choice() if mark is not None else hint, ...)
        model = create_model(f"{self.axis}_{word}", __base__=Options, **fields)
        model.nested, model.registry = nested, self
        return model

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


def _chosen(variant: Any, hints: dict[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    """Name and type of each option: keyword-only parameters, and the keys of `**common: Unpack[SomeTypedDict]`."""
    for parameter in inspect.signature(variant).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            if parameter.default is not parameter.empty:
                raise ConfigError.at(name, f"the class gives {parameter.name} a default: defaults are in the YAML of the variant alone")
            if parameter.name not in hints:
                raise ConfigError.at(name, f"the class does not say of what type {parameter.name} is: annotate it")
            yield parameter.name, hints[parameter.name]
        elif parameter.kind is parameter.VAR_KEYWORD:
            (common,) = get_args(hints[parameter.name])
            yield from get_type_hints(common, include_extras=True).items()


def _registry_of(hint: Any) -> Registry[Any] | None:
    """`Annotated[Options, NORM]` in a signature means: any variant of NORM, with its own options."""
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((mark for mark in marks if isinstance(mark, Registry)), None)
