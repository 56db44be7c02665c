type CallOptions = { signal?: AbortSignal };
/** A place on earth. */
type definitions_Place = {
  lat: number;
  lon: number;
};
/** A place on earth. */
type definitions_Place_2 = {
  lat: number;
  lon: number;
};
type definitions_of_draft_seven_Color = "red" | "blue";
type reference_by_odd_pointer_a1b = string;
type reference_by_odd_pointer_xy = number;
type reference_by_odd_pointer_a1b_2 = string;
type reference_by_odd_pointer_xy_2 = number;
type tree_Args = {
  value?: number;
  node?: tree_Args;
};
type tree_Result = {
  value?: number;
  node?: tree_Result;
};
type list_of_children_Node = {
  name: string;
  children?: Array<list_of_children_Node>;
};
type mutual_recursion_A = {
  b?: mutual_recursion_B | null;
};
type mutual_recursion_B = {
  a?: mutual_recursion_A;
  n: number;
};
type any_json_Json = string | number | boolean | null | Array<any_json_Json> | {
  [key: string]: any_json_Json;
};
type reference_beside_properties_Base = {
  /** integer */
  id: number;
};
type reference_beside_properties_Base_2 = {
  /** integer */
  id: number;
};

declare const tools: {
  /** Case string. */
  string(args?: Record<string, unknown>, options?: CallOptions): Promise<string>;
  /** Case integer. Returns: integer */
  integer(args?: Record<string, unknown>, options?: CallOptions): Promise<number>;
  /** Case number. */
  number(args?: Record<string, unknown>, options?: CallOptions): Promise<number>;
  /** Case boolean. */
  boolean(args?: Record<string, unknown>, options?: CallOptions): Promise<boolean>;
  /** Case null. */
  null(args?: Record<string, unknown>, options?: CallOptions): Promise<null>;
  /** Case anything. */
  anything(args?: Record<string, unknown>, options?: CallOptions): Promise<unknown>;
  /** Case nothing but description. Returns: Whatever the server says. */
  nothing_but_description(args?: Record<string, unknown>, options?: CallOptions): Promise<unknown>;
  /** Case const string. */
  const_string(args?: Record<string, unknown>, options?: CallOptions): Promise<"fixed">;
  /** Case const number. */
  const_number(args?: Record<string, unknown>, options?: CallOptions): Promise<-1.5>;
  /** Case const large integer. */
  const_large_integer(args?: Record<string, unknown>, options?: CallOptions): Promise<9007199254740993n>;
  /** Case const object. */
  const_object(args?: Record<string, unknown>, options?: CallOptions): Promise<{ kind: "a"; n: [1, null] }>;
  /** Case enum strings. */
  enum_strings(args?: Record<string, unknown>, options?: CallOptions): Promise<"fast" | "thorough">;
  /** Case enum mixed. */
  enum_mixed(args?: Record<string, unknown>, options?: CallOptions): Promise<"a" | 1 | true | null>;
  /** Case enum with quotes. */
  enum_with_quotes(args?: Record<string, unknown>, options?: CallOptions): Promise<"say \"hi\"" | "back\\slash" | "line\nbreak" | "\u2028">;
  /** Case type list. Returns: integer */
  type_list(args?: Record<string, unknown>, options?: CallOptions): Promise<string | number>;
  /** Case nullable by type list. Returns: integer */
  nullable_by_type_list(args?: Record<string, unknown>, options?: CallOptions): Promise<number | null>;
  /** Case nullable keyword. Returns: integer */
  nullable_keyword(args?: Record<string, unknown>, options?: CallOptions): Promise<number | null>;
  /** Case nullable by any of. Returns: default null, integer */
  nullable_by_any_of(args?: Record<string, unknown>, options?: CallOptions): Promise<number | null>;
  /** Case object open. */
  object_open(args?: Record<string, unknown>, options?: CallOptions): Promise<Record<string, unknown>>;
  /** Case object required and optional. */
  object_required_and_optional(args: {
    query: string;
    /** integer */
    limit?: number | null;
    mode?: "fast" | "thorough";
  }, options?: CallOptions): Promise<{
    query: string;
    /** integer */
    limit?: number | null;
    mode?: "fast" | "thorough";
  }>;
  /** Case object closed. */
  object_closed(args: {
    /** integer, minimum 1, maximum 5 */
    n: number;
    /** default "fast" */
    mode?: string;
  }, options?: CallOptions): Promise<{
    /** integer, minimum 1, maximum 5 */
    n: number;
    /** default "fast" */
    mode?: string;
  }>;
  /** Case object closed and empty. */
  object_closed_and_empty(args?: Record<string, never>, options?: CallOptions): Promise<Record<string, never>>;
  /** Case object of further strings. */
  object_of_further_strings(args?: {
    [key: string]: string;
  }, options?: CallOptions): Promise<{
    [key: string]: string;
  }>;
  /** Case object with further numbers. */
  object_with_further_numbers(args: {
    name: string;
    size?: number;
    [key: string]: number | string | undefined;
  }, options?: CallOptions): Promise<{
    name: string;
    size?: number;
    [key: string]: number | string | undefined;
  }>;
  /** Case object with any further. */
  object_with_any_further(args: {
    name: string;
    [key: string]: unknown;
  }, options?: CallOptions): Promise<{
    name: string;
    [key: string]: unknown;
  }>;
  /** Case object with further objects. */
  object_with_further_objects(args?: {
    a?: {
      a?: string;
      b?: string;
      c?: string;
      d?: string;
      e?: string;
      f?: string;
      g?: string;
      h?: string;
      i?: string;
      j?: string;
      k?: string;
      l?: string;
      m?: string;
      n?: string;
      o?: string;
      p?: string;
      q?: string;
      r?: string;
      s?: string;
      t?: string;
      u?: string;
      v?: string;
      w?: string;
      x?: string;
      y?: string;
      z?: string;
    };
    /** further keys */
    [key: string]: unknown;
  }, options?: CallOptions): Promise<{
    a?: {
      a?: string;
      b?: string;
      c?: string;
      d?: string;
      e?: string;
      f?: string;
      g?: string;
      h?: string;
      i?: string;
      j?: string;
      k?: string;
      l?: string;
      m?: string;
      n?: string;
      o?: string;
      p?: string;
      q?: string;
      r?: string;
      s?: string;
      t?: string;
      u?: string;
      v?: string;
      w?: string;
      x?: string;
      y?: string;
      z?: string;
    };
    /** further keys */
    [key: string]: unknown;
  }>;
  /** Case pattern properties. */
  pattern_properties(args?: {
    /** keys that match ^x- or ^n- */
    [key: string]: string | number;
  }, options?: CallOptions): Promise<{
    /** keys that match ^x- or ^n- */
    [key: string]: string | number;
  }>;
  /** Case pattern and named. */
  pattern_and_named(args: {
    /** integer */
    id: number;
    /** keys that match ^x- */
    [key: string]: string | number;
  }, options?: CallOptions): Promise<{
    /** integer */
    id: number;
    /** keys that match ^x- */
    [key: string]: string | number;
  }>;
  /** Case required without property. */
  required_without_property(args: {
    id: unknown;
  }, options?: CallOptions): Promise<{
    id: unknown;
  }>;
  /** Case keys that need quotes. */
  keys_that_need_quotes(args: {
    "a-b": string;
    "1st"?: number;
    "with space"?: boolean;
    "quo\"te"?: string;
    ""?: string;
    "ключ"?: string;
    "*/"?: string;
  }, options?: CallOptions): Promise<{
    "a-b": string;
    "1st"?: number;
    "with space"?: boolean;
    "quo\"te"?: string;
    ""?: string;
    "ключ"?: string;
    "*/"?: string;
  }>;
  /** Case keys that are words. */
  keys_that_are_words(args?: {
    new?: string;
    get?: string;
    readonly?: boolean;
    constructor?: string;
    class?: number;
    default?: string;
    __proto__x?: string;
  }, options?: CallOptions): Promise<{
    new?: string;
    get?: string;
    readonly?: boolean;
    constructor?: string;
    class?: number;
    default?: string;
    __proto__x?: string;
  }>;
  /** Case object without type. */
  object_without_type(args?: Record<string, unknown>, options?: CallOptions): Promise<{
    a?: string;
  }>;
  /** Case nested objects. */
  nested_objects(args: {
    user: {
      address: {
        city: string;
      };
    };
  }, options?: CallOptions): Promise<{
    user: {
      address: {
        city: string;
      };
    };
  }>;
  /** Case array of strings. */
  array_of_strings(args?: Record<string, unknown>, options?: CallOptions): Promise<Array<string>>;
  /** Case array of anything. */
  array_of_anything(args?: Record<string, unknown>, options?: CallOptions): Promise<unknown[]>;
  /** Case array of arrays. */
  array_of_arrays(args?: Record<string, unknown>, options?: CallOptions): Promise<Array<Array<number>>>;
  /** Case array of alternatives. */
  array_of_alternatives(args?: Record<string, unknown>, options?: CallOptions): Promise<Array<string | number>>;
  /** Case array of objects. Returns: minItems 1 */
  array_of_objects(args?: Record<string, unknown>, options?: CallOptions): Promise<Array<{
    /** integer */
    id: number;
  }>>;
  /** Case tuple of prefix items. Returns: minItems 2 */
  tuple_of_prefix_items(args?: Record<string, unknown>, options?: CallOptions): Promise<[string, number]>;
  /** Case tuple with rest. Returns: minItems 1 */
  tuple_with_rest(args?: Record<string, unknown>, options?: CallOptions): Promise<[string, ...Array<number>]>;
  /** Case tuple with optional end. Returns: minItems 1 */
  tuple_with_optional_end(args?: Record<string, unknown>, options?: CallOptions): Promise<[string, (number | null)?]>;
  /** Case tuple of draft seven. Returns: minItems 2 */
  tuple_of_draft_seven(args?: Record<string, unknown>, options?: CallOptions): Promise<[string, number]>;
  /** Case any of. */
  any_of(args?: Record<string, unknown>, options?: CallOptions): Promise<string | {
    /** integer */
    id: number;
  }>;
  /** Case one of by kind. */
  one_of_by_kind(args?: Record<string, unknown>, options?: CallOptions): Promise<{
    kind: "circle";
    r: number;
  } | {
    kind: "square";
    side: number;
  }>;
  /** Case all of. */
  all_of(args?: Record<string, unknown>, options?: CallOptions): Promise<{
    a: string;
  } & {
    b: number;
  }>;
  /** Case all of with union. */
  all_of_with_union(args?: Record<string, unknown>, options?: CallOptions): Promise<({
    a: string;
  } | {
    b: string;
  }) & {
    c: number;
  }>;
  /** Case object with alternatives. */
  object_with_alternatives(args: {
    /** integer */
    id: number;
  } & ({
    by: "name";
    name: string;
  } | {
    by: "age";
    /** integer */
    age: number;
  }), options?: CallOptions): Promise<{
    /** integer */
    id: number;
  } & ({
    by: "name";
    name: string;
  } | {
    by: "age";
    /** integer */
    age: number;
  })>;
  /** Case object where one is required. */
  object_where_one_is_required(args: {
    a?: string;
    b?: string;
  }, options?: CallOptions): Promise<{
    a?: string;
    b?: string;
  }>;
  /** Case format date time. */
  format_date_time(args: {
    /** When. (format date-time) */
    at: string;
    /** format email */
    mail?: string;
  }, options?: CallOptions): Promise<{
    /** When. (format date-time) */
    at: string;
    /** format email */
    mail?: string;
  }>;
  /** Case bounds and patterns. */
  bounds_and_patterns(args?: {
    /** pattern ^[A-Z]*\/?$, minLength 1, maxLength 8 */
    code?: string;
    /** integer, exclusiveMinimum 0, multipleOf 5, default 10 */
    n?: number;
    /** maxItems 2, uniqueItems, each: maxLength 3 */
    tags?: Array<string>;
  }, options?: CallOptions): Promise<{
    /** pattern ^[A-Z]*\/?$, minLength 1, maxLength 8 */
    code?: string;
    /** integer, exclusiveMinimum 0, multipleOf 5, default 10 */
    n?: number;
    /** maxItems 2, uniqueItems, each: maxLength 3 */
    tags?: Array<string>;
  }>;
  /** Case definitions. */
  definitions(args: {
    from: definitions_Place;
    /** Where it ends. */
    to?: definitions_Place;
  }, options?: CallOptions): Promise<{
    from: definitions_Place_2;
    /** Where it ends. */
    to?: definitions_Place_2;
  }>;
  /** Case definitions of draft seven. */
  definitions_of_draft_seven(args?: Record<string, unknown>, options?: CallOptions): Promise<definitions_of_draft_seven_Color>;
  /** Case reference by odd pointer. */
  reference_by_odd_pointer(args?: {
    "a/b"?: string;
    "x%y"?: number;
    c?: reference_by_odd_pointer_a1b;
    d?: reference_by_odd_pointer_xy;
  }, options?: CallOptions): Promise<{
    "a/b"?: string;
    "x%y"?: number;
    c?: reference_by_odd_pointer_a1b_2;
    d?: reference_by_odd_pointer_xy_2;
  }>;
  /** Case tree. */
  tree(args?: tree_Args, options?: CallOptions): Promise<tree_Result>;
  /** Case list of children. */
  list_of_children(args?: Record<string, unknown>, options?: CallOptions): Promise<list_of_children_Node>;
  /** Case mutual recursion. */
  mutual_recursion(args?: Record<string, unknown>, options?: CallOptions): Promise<mutual_recursion_A>;
  /** Case any json. */
  any_json(args?: Record<string, unknown>, options?: CallOptions): Promise<any_json_Json>;
  /** Case reference beside properties. */
  reference_beside_properties(args: reference_beside_properties_Base & {
    extra: string;
  }, options?: CallOptions): Promise<reference_beside_properties_Base_2 & {
    extra: string;
  }>;
  /** Case descriptions that end comments. Returns: *\/ declare const x: any; /* */
  descriptions_that_end_comments(args?: {
    /** ends *\/ here and goes on /* twice *\/ `x` ${y} */
    a?: string;
  }, options?: CallOptions): Promise<{
    /** ends *\/ here and goes on /* twice *\/ `x` ${y} */
    a?: string;
  }>;
  /** Case conditions. (also limited by not, also limited by if) Returns: also limited by not, also limited by if */
  conditions(args: {
    country?: string;
    zip?: string;
  }, options?: CallOptions): Promise<{
    country?: string;
    zip?: string;
  }>;
  /** Case false property. */
  false_property(args?: {
    never?: never;
    a?: string;
  }, options?: CallOptions): Promise<{
    never?: never;
    a?: string;
  }>;
  /** Calls a tool by its name in the catalog or here. */
  call(name: string, args?: object, options?: CallOptions): Promise<unknown>;
};
