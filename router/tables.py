"""The tables of our files, declared once: typed, immutable, checked where a file is read.

A `Table` is a frozen dataclass of the standard library. What its fields must be is kept beside
them and is given to pydantic when a file is checked, and only then: pydantic and what it builds
take 15 MB, and the process that serves never checks a file itself (see reading.py). The names
are pydantic's, because what they do is done by it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar, dataclass_transform

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_Check = TypeVar("_Check")


def Field(  # it stands where pydantic's stands
    *,
    default: Any = dataclasses.MISSING,
    default_factory: Any = dataclasses.MISSING,
    **told: Any,
) -> Any:
    """A field with what holds for it, in the words of pydantic's `Field`."""
    return dataclasses.field(default=default, default_factory=default_factory, metadata=told)


def field_validator(
    *fields: str, mode: Literal["before", "after"] = "after"
) -> Callable[[_Check], _Check]:
    """Marks a function of (class, value): gives the value, or raises ValueError with why not."""

    def mark(function: _Check) -> _Check:
        return _marked(function, lambda pydantic: pydantic.field_validator(*fields, mode=mode))

    return mark


def model_validator(*, mode: Literal["after"]) -> Callable[[_Check], _Check]:
    """Marks a method that gives the table itself, or raises ValueError with why not."""

    def mark(function: _Check) -> _Check:
        return _marked(function, lambda pydantic: pydantic.model_validator(mode=mode))

    return mark


def _marked(function: _Check, real: Callable[[Any], Any]) -> _Check:
    function.__check__ = real  # type: ignore[attr-defined]
    return function


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(Field,))
@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """One table. Built by its name it is taken as it is; `model_validate` is what checks."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    __checks__: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        own = {name: value for name, value in vars(cls).items() if hasattr(value, "__check__")}
        cls.__checks__ = {**cls.__checks__, **own}
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)

    @classmethod
    def model_validate(cls, value: Any) -> Self:
        """The table that `value` describes; raises pydantic's ValidationError."""
        checked: Self = _adapter(cls).validate_python(value)
        return checked

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        """The JSON Schema of what `model_validate` takes."""
        return _adapter(cls).json_schema(by_alias=True)

    @classmethod
    def names(cls) -> dict[str, str]:
        """Its fields as a file calls them, and their attributes."""
        return {
            field.metadata.get("alias", field.name): field.name for field in dataclasses.fields(cls)
        }

    def model_copy(self, *, update: Mapping[str, Any]) -> Self:
        """The same with other values, which are taken as they are."""
        return dataclasses.replace(self, **update)

    def model_dump(self, *, exclude: Collection[str] = ()) -> dict[str, Any]:
        """What it holds as dicts."""
        return {
            field.name: _plain(getattr(self, field.name))
            for field in dataclasses.fields(self)
            if field.name not in exclude
        }

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        _hand_over_checks(cls)
        return handler(source)


def _plain(value: Any) -> Any:
    if isinstance(value, Table):
        return value.model_dump()
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return value


_adapters: dict[type[Table], TypeAdapter[Any]] = {}


def _adapter(kind: type[Table]) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


def _hand_over_checks(kind: type[Table]) -> None:
    """Put pydantic's own marks in place of ours, and of those that were inherited."""
    import pydantic

    for name, marked in kind.__checks__.items():
        setattr(kind, name, marked.__check__(pydantic)(marked))
