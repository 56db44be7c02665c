from typing import Annotated, Any, Literal, Never, NotRequired, TypeAlias, TypedDict

class ObjectRequiredAndOptionalResult(TypedDict):
    query: str
    limit: NotRequired[int | None]
    mode: NotRequired[Literal["fast", "thorough"]]
class ObjectClosedResult(TypedDict):
    #: minimum 1, maximum 5
    n: int
    #: default "fast"
    mode: NotRequired[str]
class ObjectWithFurtherNumbersResult(TypedDict):
    name: str
    size: NotRequired[float]
class ObjectWithAnyFurtherResult(TypedDict):
    name: str
class ObjectWithFurtherObjectsA(TypedDict, total=False):
    a: str
    b: str
    c: str
    d: str
    e: str
    f: str
    g: str
    h: str
    i: str
    j: str
    k: str
    l: str
    m: str
    n: str
    o: str
    p: str
    q: str
    r: str
    s: str
    t: str
    u: str
    v: str
    w: str
    x: str
    y: str
    z: str
class ObjectWithFurtherObjectsA_2(TypedDict, total=False):
    a: str
    b: str
    c: str
    d: str
    e: str
    f: str
    g: str
    h: str
    i: str
    j: str
    k: str
    l: str
    m: str
    n: str
    o: str
    p: str
    q: str
    r: str
    s: str
    t: str
    u: str
    v: str
    w: str
    x: str
    y: str
    z: str
class ObjectWithFurtherObjectsResult(TypedDict, total=False):
    a: ObjectWithFurtherObjectsA_2
class PatternAndNamedResult(TypedDict):
    id: int
class RequiredWithoutPropertyResult(TypedDict):
    id: Any
KeysThatNeedQuotesResult = TypedDict("KeysThatNeedQuotesResult", {
    "a-b": str,
    "1st": NotRequired[float],
    "with space": NotRequired[bool],
    "quo\"te": NotRequired[str],
    "ключ": NotRequired[str],
    "*/": NotRequired[str],
})
KeysThatAreWordsResult = TypedDict("KeysThatAreWordsResult", {
    "new": str,
    "get": str,
    "readonly": bool,
    "constructor": str,
    "class": float,
    "default": str,
    "__proto__x": str,
}, total=False)
class ObjectWithoutTypeResult(TypedDict, total=False):
    a: str
class NestedObjectsAddress(TypedDict):
    city: str
class NestedObjectsUser(TypedDict):
    address: NestedObjectsAddress
class NestedObjectsAddress_2(TypedDict):
    city: str
class NestedObjectsUser_2(TypedDict):
    address: NestedObjectsAddress_2
class NestedObjectsResult(TypedDict):
    user: NestedObjectsUser_2
class ArrayOfObjectsResult(TypedDict):
    id: int
class AnyOfResult(TypedDict):
    id: int
class OneOfByKindResult(TypedDict):
    kind: Literal["circle"]
    r: float
class OneOfByKindResult_2(TypedDict):
    kind: Literal["square"]
    side: float
class AllOfResult(TypedDict):
    a: str
    b: float
class AllOfWithUnionResult(TypedDict):
    a: str
    c: float
class AllOfWithUnionResult_2(TypedDict):
    b: str
    c: float
class ObjectWithAlternativesResult(TypedDict):
    id: int
    by: Literal["name"]
    name: str
class ObjectWithAlternativesResult_2(TypedDict):
    id: int
    by: Literal["age"]
    age: int
class ObjectWhereOneIsRequiredResult(TypedDict, total=False):
    a: str
    b: str
class FormatDateTimeResult(TypedDict):
    #: When. (format date-time)
    at: str
    #: format email
    mail: NotRequired[str]
class BoundsAndPatternsResult(TypedDict, total=False):
    #: pattern ^[A-Z]*/?$, minLength 1, maxLength 8
    code: str
    #: exclusiveMinimum 0, multipleOf 5, default 10
    n: int
    #: maxItems 2, uniqueItems, each: maxLength 3
    tags: list[str]
class DefinitionsPlace(TypedDict):
    """A place on earth."""
    lat: float
    lon: float
class DefinitionsPlace_2(TypedDict):
    """A place on earth."""
    lat: float
    lon: float
DefinitionsResult = TypedDict("DefinitionsResult", {
    "from": DefinitionsPlace_2,
    #: Where it ends.
    "to": NotRequired[DefinitionsPlace_2],
})
DefinitionsOfDraftSevenColor: TypeAlias = Literal["red", "blue"]
ReferenceByOddPointerA1b: TypeAlias = str
ReferenceByOddPointerXy: TypeAlias = float
ReferenceByOddPointerA1b_2: TypeAlias = str
ReferenceByOddPointerXy_2: TypeAlias = float
ReferenceByOddPointerResult = TypedDict("ReferenceByOddPointerResult", {
    "a/b": str,
    "x%y": float,
    "c": ReferenceByOddPointerA1b_2,
    "d": ReferenceByOddPointerXy_2,
}, total=False)
class TreeArgs(TypedDict, total=False):
    value: float
    node: TreeArgs
class TreeResult(TypedDict, total=False):
    value: float
    node: TreeResult
class ListOfChildrenNode(TypedDict):
    name: str
    children: NotRequired[list[ListOfChildrenNode]]
class MutualRecursionA(TypedDict, total=False):
    b: MutualRecursionB | None
class MutualRecursionB(TypedDict):
    a: NotRequired[MutualRecursionA]
    n: float
AnyJsonJson: TypeAlias = str | float | bool | None | list[AnyJsonJson] | dict[str, AnyJsonJson]
class ReferenceBesidePropertiesBase(TypedDict):
    id: int
class ReferenceBesidePropertiesBase_2(TypedDict):
    id: int
class ReferenceBesidePropertiesResult(TypedDict):
    id: int
    extra: str
class DescriptionsThatEndCommentsResult(TypedDict, total=False):
    #: ends */ here and goes on /* twice */ `x` ${y}
    a: str
class ConditionsResult(TypedDict, total=False):
    country: str
    zip: str
class FalsePropertyResult(TypedDict, total=False):
    never: Never
    a: str
class Tools:
    async def string(self, **arguments: Any) -> str:
        """Case string."""
    async def integer(self, **arguments: Any) -> int:
        """Case integer."""
    async def number(self, **arguments: Any) -> float:
        """Case number."""
    async def boolean(self, **arguments: Any) -> bool:
        """Case boolean."""
    async def null(self, **arguments: Any) -> None:
        """Case null."""
    async def anything(self, **arguments: Any) -> Any:
        """Case anything."""
    async def nothing_but_description(self, **arguments: Any) -> Any:
        """Case nothing but description.

        Returns: Whatever the server says.
        """
    async def const_string(self, **arguments: Any) -> Literal["fixed"]:
        """Case const string."""
    async def const_number(self, **arguments: Any) -> Annotated[float, "-1.5"]:
        """Case const number."""
    async def const_large_integer(self, **arguments: Any) -> Literal[9007199254740993]:
        """Case const large integer."""
    async def const_object(
        self,
        **arguments: Any,
    ) -> Annotated[dict[str, Any], "{\"kind\":\"a\",\"n\":[1,null]}"]:
        """Case const object."""
    async def enum_strings(self, **arguments: Any) -> Literal["fast", "thorough"]:
        """Case enum strings."""
    async def enum_mixed(self, **arguments: Any) -> Literal["a", 1, True] | None:
        """Case enum mixed."""
    async def enum_with_quotes(
        self,
        **arguments: Any,
    ) -> Literal["say \"hi\"", "back\\slash", "line\nbreak", "\u2028"]:
        """Case enum with quotes."""
    async def type_list(self, **arguments: Any) -> str | int:
        """Case type list."""
    async def nullable_by_type_list(self, **arguments: Any) -> int | None:
        """Case nullable by type list."""
    async def nullable_keyword(self, **arguments: Any) -> int | None:
        """Case nullable keyword."""
    async def nullable_by_any_of(self, **arguments: Any) -> int | None:
        """Case nullable by any of.

        Returns: default null
        """
    async def object_open(self, **others: Any) -> dict[str, Any]:
        """Case object open."""
    async def object_required_and_optional(
        self,
        *,
        query: str,
        limit: int | None = ...,
        mode: Literal["fast", "thorough"] = ...,
    ) -> ObjectRequiredAndOptionalResult:
        """Case object required and optional."""
    async def object_closed(self, *, n: int, mode: str = ...) -> ObjectClosedResult:
        """Case object closed.

        n: minimum 1, maximum 5
        mode: default "fast"
        """
    async def object_closed_and_empty(self) -> dict[str, Never]:
        """Case object closed and empty."""
    async def object_of_further_strings(self, **others: str) -> dict[str, str]:
        """Case object of further strings."""
    async def object_with_further_numbers(
        self,
        *,
        name: str,
        size: float = ...,
        **others: Any,
    ) -> ObjectWithFurtherNumbersResult | dict[str, Any]:
        """Case object with further numbers."""
    async def object_with_any_further(
        self,
        *,
        name: str,
        **others: Any,
    ) -> ObjectWithAnyFurtherResult | dict[str, Any]:
        """Case object with any further."""
    async def object_with_further_objects(
        self,
        *,
        a: ObjectWithFurtherObjectsA = ...,
        **others: Any,
    ) -> ObjectWithFurtherObjectsResult | dict[str, Any]:
        """Case object with further objects."""
    async def pattern_properties(
        self,
        **others: str | float,
    ) -> Annotated[dict[str, str | float], "keys that match ^x- or ^n-"]:
        """Case pattern properties.

        **others: keys that match ^x- or ^n-
        """
    async def pattern_and_named(
        self,
        *,
        id: int,
        **others: Any,
    ) -> PatternAndNamedResult | dict[str, Any]:
        """Case pattern and named.

        **others: keys that match ^x-
        """
    async def required_without_property(self, *, id: Any) -> RequiredWithoutPropertyResult:
        """Case required without property."""
    async def keys_that_need_quotes(
        self,
        **others: Any,
    ) -> KeysThatNeedQuotesResult | dict[str, Any]:
        """Case keys that need quotes.

        **{"a-b": str}, required
        **{"1st": float}, optional
        **{"with space": bool}, optional
        **{"quo\\"te": str}, optional
        **{"": str}, optional
        **{"ключ": str}, optional
        **{"*/": str}, optional
        """
    async def keys_that_are_words(
        self,
        *,
        new: str = ...,
        get: str = ...,
        readonly: bool = ...,
        constructor: str = ...,
        default: str = ...,
        **others: Any,
    ) -> KeysThatAreWordsResult:
        """Case keys that are words.

        **{"class": float}, optional
        **{"__proto__x": str}, optional
        """
    async def object_without_type(self, **arguments: Any) -> ObjectWithoutTypeResult:
        """Case object without type."""
    async def nested_objects(self, *, user: NestedObjectsUser) -> NestedObjectsResult:
        """Case nested objects."""
    async def array_of_strings(self, **arguments: Any) -> list[str]:
        """Case array of strings."""
    async def array_of_anything(self, **arguments: Any) -> list[Any]:
        """Case array of anything."""
    async def array_of_arrays(self, **arguments: Any) -> list[list[float]]:
        """Case array of arrays."""
    async def array_of_alternatives(self, **arguments: Any) -> list[str | float]:
        """Case array of alternatives."""
    async def array_of_objects(self, **arguments: Any) -> list[ArrayOfObjectsResult]:
        """Case array of objects.

        Returns: minItems 1
        """
    async def tuple_of_prefix_items(
        self,
        **arguments: Any,
    ) -> Annotated[list[str | float], "by place: str, float"]:
        """Case tuple of prefix items.

        Returns: minItems 2
        """
    async def tuple_with_rest(
        self,
        **arguments: Any,
    ) -> Annotated[list[str | float], "by place: str, then any number of float"]:
        """Case tuple with rest.

        Returns: minItems 1
        """
    async def tuple_with_optional_end(
        self,
        **arguments: Any,
    ) -> Annotated[list[str | float | None], "by place: str, float | None (may be missing)"]:
        """Case tuple with optional end.

        Returns: minItems 1
        """
    async def tuple_of_draft_seven(
        self,
        **arguments: Any,
    ) -> Annotated[list[str | float], "by place: str, float"]:
        """Case tuple of draft seven.

        Returns: minItems 2
        """
    async def any_of(self, **arguments: Any) -> str | AnyOfResult:
        """Case any of."""
    async def one_of_by_kind(self, **arguments: Any) -> OneOfByKindResult | OneOfByKindResult_2:
        """Case one of by kind."""
    async def all_of(self, **arguments: Any) -> AllOfResult:
        """Case all of."""
    async def all_of_with_union(
        self,
        **arguments: Any,
    ) -> AllOfWithUnionResult | AllOfWithUnionResult_2:
        """Case all of with union."""
    async def object_with_alternatives(
        self,
        *,
        id: int,
        by: Literal["name", "age"],
        name: str = ...,
        age: int = ...,
    ) -> ObjectWithAlternativesResult | ObjectWithAlternativesResult_2:
        """Case object with alternatives.

        One of: (id, by, name), (id, by, age)
        """
    async def object_where_one_is_required(
        self,
        *,
        a: str = ...,
        b: str = ...,
    ) -> ObjectWhereOneIsRequiredResult:
        """Case object where one is required."""
    async def format_date_time(self, *, at: str, mail: str = ...) -> FormatDateTimeResult:
        """Case format date time.

        at: When. (format date-time)
        mail: format email
        """
    async def bounds_and_patterns(
        self,
        *,
        code: str = ...,
        n: int = ...,
        tags: list[str] = ...,
    ) -> BoundsAndPatternsResult:
        """Case bounds and patterns.

        code: pattern ^[A-Z]*/?$, minLength 1, maxLength 8
        n: exclusiveMinimum 0, multipleOf 5, default 10
        tags: maxItems 2, uniqueItems, each: maxLength 3
        """
    async def definitions(self, *, to: DefinitionsPlace = ..., **others: Any) -> DefinitionsResult:
        """Case definitions.

        **{"from": DefinitionsPlace}, required
        to: Where it ends.
        """
    async def definitions_of_draft_seven(self, **arguments: Any) -> DefinitionsOfDraftSevenColor:
        """Case definitions of draft seven."""
    async def reference_by_odd_pointer(
        self,
        *,
        c: ReferenceByOddPointerA1b = ...,
        d: ReferenceByOddPointerXy = ...,
        **others: Any,
    ) -> ReferenceByOddPointerResult:
        """Case reference by odd pointer.

        **{"a/b": str}, optional
        **{"x%y": float}, optional
        """
    async def tree(self, *, value: float = ..., node: TreeArgs = ...) -> TreeResult:
        """Case tree."""
    async def list_of_children(self, **arguments: Any) -> ListOfChildrenNode:
        """Case list of children."""
    async def mutual_recursion(self, **arguments: Any) -> MutualRecursionA:
        """Case mutual recursion."""
    async def any_json(self, **arguments: Any) -> AnyJsonJson:
        """Case any json."""
    async def reference_beside_properties(
        self,
        *,
        id: int,
        extra: str,
    ) -> ReferenceBesidePropertiesResult:
        """Case reference beside properties."""
    async def descriptions_that_end_comments(
        self,
        *,
        a: str = ...,
    ) -> DescriptionsThatEndCommentsResult:
        """Case descriptions that end comments.

        a: ends */ here and goes on /* twice */ `x` ${y}

        Returns: */ declare const x: any; /*
        """
    async def conditions(self, *, country: str = ..., zip: str = ...) -> ConditionsResult:
        """Case conditions. (also limited by not, also limited by if)

        Returns: also limited by not, also limited by if
        """
    async def false_property(self, *, never: Never = ..., a: str = ...) -> FalsePropertyResult:
        """Case false property."""
    async def call(self, name: str, arguments: dict[str, Any] = ..., /) -> Any:
        """Calls a tool by its name in the catalog or here."""

tools: Tools
