# Types are in the words of RBS: `?` marks a key that may be missing.
# A place on earth.
# type definitions_Place = {
#   lat: Numeric,
#   lon: Numeric,
# }
# A place on earth.
# type definitions_Place_2 = {
#   "lat" => Numeric,
#   "lon" => Numeric,
# }
# type definitions_of_draft_seven_Color = "red" | "blue"
# type reference_by_odd_pointer_a1b = String
# type reference_by_odd_pointer_xy = Numeric
# type reference_by_odd_pointer_a1b_2 = String
# type reference_by_odd_pointer_xy_2 = Numeric
# type tree_Args = {
#   ?value: Numeric,
#   ?node: tree_Args,
# }
# type tree_Result = {
#   ?"value" => Numeric,
#   ?"node" => tree_Result,
# }
# type list_of_children_Node = {
#   "name" => String,
#   ?"children" => Array[list_of_children_Node],
# }
# type mutual_recursion_A = {
#   ?"b" => mutual_recursion_B | nil,
# }
# type mutual_recursion_B = {
#   ?"a" => mutual_recursion_A,
#   "n" => Numeric,
# }
# type any_json_Json = String | Numeric | bool | nil | Array[any_json_Json] | Hash[String, any_json_Json]
# type reference_beside_properties_Base = {
#   id: Integer,
# }
# type reference_beside_properties_Base_2 = {
#   "id" => Integer,
# }

# Case string.
# Returns String
def tools.string(**arguments); end
# Case integer.
# Returns Integer
def tools.integer(**arguments); end
# Case number.
# Returns Numeric
def tools.number(**arguments); end
# Case boolean.
# Returns bool
def tools.boolean(**arguments); end
# Case null.
# Returns nil
def tools.null(**arguments); end
# Case anything.
# Returns untyped
def tools.anything(**arguments); end
# Case nothing but description.
# Returns untyped: Whatever the server says.
def tools.nothing_but_description(**arguments); end
# Case const string.
# Returns "fixed"
def tools.const_string(**arguments); end
# Case const number.
# Returns -1.5
def tools.const_number(**arguments); end
# Case const large integer.
# Returns 9007199254740993
def tools.const_large_integer(**arguments); end
# Case const object.
# Returns { "kind" => "a", "n" => [1, nil] }
def tools.const_object(**arguments); end
# Case enum strings.
# Returns "fast" | "thorough"
def tools.enum_strings(**arguments); end
# Case enum mixed.
# Returns "a" | 1 | true | nil
def tools.enum_mixed(**arguments); end
# Case enum with quotes.
# Returns "say \"hi\"" | "back\\slash" | "line\nbreak" | "\u2028"
def tools.enum_with_quotes(**arguments); end
# Case type list.
# Returns String | Integer
def tools.type_list(**arguments); end
# Case nullable by type list.
# Returns Integer | nil
def tools.nullable_by_type_list(**arguments); end
# Case nullable keyword.
# Returns Integer | nil
def tools.nullable_keyword(**arguments); end
# Case nullable by any of.
# Returns Integer | nil: default null
def tools.nullable_by_any_of(**arguments); end
# Case object open.
# Returns Hash[String, untyped]
def tools.object_open(**others); end
# Case object required and optional.
#   query: String, required
#   limit: Integer | nil, optional
#   mode: "fast" | "thorough", optional
# Returns {
#   "query" => String,
#   ?"limit" => Integer | nil,
#   ?"mode" => "fast" | "thorough",
# }
def tools.object_required_and_optional(query:, limit: nil, mode: nil); end
# Case object closed.
#   n: Integer, required. minimum 1, maximum 5
#   mode: String, optional. default "fast"
# Returns {
#   # minimum 1, maximum 5
#   "n" => Integer,
#   # default "fast"
#   ?"mode" => String,
# }
def tools.object_closed(n:, mode: nil); end
# Case object closed and empty.
# Returns {}
def tools.object_closed_and_empty(); end
# Case object of further strings.
# Returns Hash[String, String]
def tools.object_of_further_strings(**others); end
# Case object with further numbers.
#   name: String, required
#   size: Numeric, optional
# Returns {
#   "name" => String,
#   ?"size" => Numeric,
#   String => Numeric,
# }
def tools.object_with_further_numbers(name:, size: nil, **others); end
# Case object with any further.
#   name: String, required
# Returns {
#   "name" => String,
#   String => untyped,
# }
def tools.object_with_any_further(name:, **others); end
# Case object with further objects.
#   a: {
#     ?a: String,
#     ?b: String,
#     ?c: String,
#     ?d: String,
#     ?e: String,
#     ?f: String,
#     ?g: String,
#     ?h: String,
#     ?i: String,
#     ?j: String,
#     ?k: String,
#     ?l: String,
#     ?m: String,
#     ?n: String,
#     ?o: String,
#     ?p: String,
#     ?q: String,
#     ?r: String,
#     ?s: String,
#     ?t: String,
#     ?u: String,
#     ?v: String,
#     ?w: String,
#     ?x: String,
#     ?y: String,
#     ?z: String,
#   }, optional
# Returns {
#   ?"a" => {
#     ?"a" => String,
#     ?"b" => String,
#     ?"c" => String,
#     ?"d" => String,
#     ?"e" => String,
#     ?"f" => String,
#     ?"g" => String,
#     ?"h" => String,
#     ?"i" => String,
#     ?"j" => String,
#     ?"k" => String,
#     ?"l" => String,
#     ?"m" => String,
#     ?"n" => String,
#     ?"o" => String,
#     ?"p" => String,
#     ?"q" => String,
#     ?"r" => String,
#     ?"s" => String,
#     ?"t" => String,
#     ?"u" => String,
#     ?"v" => String,
#     ?"w" => String,
#     ?"x" => String,
#     ?"y" => String,
#     ?"z" => String,
#   },
#   String => Array[Numeric],
# }
def tools.object_with_further_objects(a: nil, **others); end
# Case pattern properties.
#   **others: keys that match ^x- or ^n-
# Returns Hash[String, String | Numeric (keys that match ^x- or ^n-)]
def tools.pattern_properties(**others); end
# Case pattern and named.
#   id: Integer, required
#   **others: keys that match ^x-
# Returns {
#   "id" => Integer,
#   String => String (keys that match ^x-),
# }
def tools.pattern_and_named(id:, **others); end
# Case required without property.
#   id: untyped, required
# Returns {
#   "id" => untyped,
# }
def tools.required_without_property(id:); end
# Case keys that need quotes.
#   "a-b": String, required
#   "1st": Numeric, optional
#   "with space": bool, optional
#   "quo\"te": String, optional
#   "": String, optional
#   "ключ": String, optional
#   "*/": String, optional
# Returns {
#   "a-b" => String,
#   ?"1st" => Numeric,
#   ?"with space" => bool,
#   ?"quo\"te" => String,
#   ?"" => String,
#   ?"ключ" => String,
#   ?"*/" => String,
# }
def tools.keys_that_need_quotes(**others); end
# Case keys that are words.
#   new: String, optional
#   get: String, optional
#   readonly: bool, optional
#   constructor: String, optional
#   class: Numeric, optional
#   default: String, optional
#   __proto__x: String, optional
# Returns {
#   ?"new" => String,
#   ?"get" => String,
#   ?"readonly" => bool,
#   ?"constructor" => String,
#   ?"class" => Numeric,
#   ?"default" => String,
#   ?"__proto__x" => String,
# }
def tools.keys_that_are_words(new: nil, get: nil, readonly: nil, constructor: nil, class: nil, default: nil, **others); end
# Case object without type.
# Returns {
#   ?"a" => String,
# }
def tools.object_without_type(**arguments); end
# Case nested objects.
#   user: {
#     address: {
#       city: String,
#     },
#   }, required
# Returns {
#   "user" => {
#     "address" => {
#       "city" => String,
#     },
#   },
# }
def tools.nested_objects(user:); end
# Case array of strings.
# Returns Array[String]
def tools.array_of_strings(**arguments); end
# Case array of anything.
# Returns Array[untyped]
def tools.array_of_anything(**arguments); end
# Case array of arrays.
# Returns Array[Array[Numeric]]
def tools.array_of_arrays(**arguments); end
# Case array of alternatives.
# Returns Array[String | Numeric]
def tools.array_of_alternatives(**arguments); end
# Case array of objects.
# Returns Array[{
#   "id" => Integer,
# }]: minItems 1
def tools.array_of_objects(**arguments); end
# Case tuple of prefix items.
# Returns [String, Numeric]: minItems 2
def tools.tuple_of_prefix_items(**arguments); end
# Case tuple with rest.
# Returns [String, *Numeric]: minItems 1
def tools.tuple_with_rest(**arguments); end
# Case tuple with optional end.
# Returns [String, ?(Numeric | nil)]: minItems 1
def tools.tuple_with_optional_end(**arguments); end
# Case tuple of draft seven.
# Returns [String, Numeric]: minItems 2
def tools.tuple_of_draft_seven(**arguments); end
# Case any of.
# Returns String | {
#   "id" => Integer,
# }
def tools.any_of(**arguments); end
# Case one of by kind.
# Returns {
#   "kind" => "circle",
#   "r" => Numeric,
# } | {
#   "kind" => "square",
#   "side" => Numeric,
# }
def tools.one_of_by_kind(**arguments); end
# Case all of.
# Returns {
#   "a" => String,
# } & {
#   "b" => Numeric,
# }
def tools.all_of(**arguments); end
# Case all of with union.
# Returns ({
#   "a" => String,
# } | {
#   "b" => String,
# }) & {
#   "c" => Numeric,
# }
def tools.all_of_with_union(**arguments); end
# Case object with alternatives.
# One of: (id, by, name), (id, by, age)
#   id: Integer, required
#   by: "name" | "age", required
#   name: String, optional
#   age: Integer, optional
# Returns {
#   "id" => Integer,
# } & ({
#   "by" => "name",
#   "name" => String,
# } | {
#   "by" => "age",
#   "age" => Integer,
# })
def tools.object_with_alternatives(id:, by:, name: nil, age: nil); end
# Case object where one is required.
#   a: String, optional
#   b: String, optional
# Returns {
#   ?"a" => String,
#   ?"b" => String,
# }
def tools.object_where_one_is_required(a: nil, b: nil); end
# Case format date time.
#   at: String, required. When. (format date-time)
#   mail: String, optional. format email
# Returns {
#   # When. (format date-time)
#   "at" => String,
#   # format email
#   ?"mail" => String,
# }
def tools.format_date_time(at:, mail: nil); end
# Case bounds and patterns.
#   code: String, optional. pattern ^[A-Z]*/?$, minLength 1, maxLength 8
#   n: Integer, optional. exclusiveMinimum 0, multipleOf 5, default 10
#   tags: Array[String], optional. maxItems 2, uniqueItems, each: maxLength 3
# Returns {
#   # pattern ^[A-Z]*/?$, minLength 1, maxLength 8
#   ?"code" => String,
#   # exclusiveMinimum 0, multipleOf 5, default 10
#   ?"n" => Integer,
#   # maxItems 2, uniqueItems, each: maxLength 3
#   ?"tags" => Array[String],
# }
def tools.bounds_and_patterns(code: nil, n: nil, tags: nil); end
# Case definitions.
#   from: definitions_Place, required
#   to: definitions_Place, optional. Where it ends.
# Returns {
#   "from" => definitions_Place_2,
#   # Where it ends.
#   ?"to" => definitions_Place_2,
# }
def tools.definitions(from:, to: nil); end
# Case definitions of draft seven.
# Returns definitions_of_draft_seven_Color
def tools.definitions_of_draft_seven(**arguments); end
# Case reference by odd pointer.
#   "a/b": String, optional
#   "x%y": Numeric, optional
#   c: reference_by_odd_pointer_a1b, optional
#   d: reference_by_odd_pointer_xy, optional
# Returns {
#   ?"a/b" => String,
#   ?"x%y" => Numeric,
#   ?"c" => reference_by_odd_pointer_a1b_2,
#   ?"d" => reference_by_odd_pointer_xy_2,
# }
def tools.reference_by_odd_pointer(c: nil, d: nil, **others); end
# Case tree.
#   value: Numeric, optional
#   node: tree_Args, optional
# Returns tree_Result
def tools.tree(value: nil, node: nil); end
# Case list of children.
# Returns list_of_children_Node
def tools.list_of_children(**arguments); end
# Case mutual recursion.
# Returns mutual_recursion_A
def tools.mutual_recursion(**arguments); end
# Case any json.
# Returns any_json_Json
def tools.any_json(**arguments); end
# Case reference beside properties.
#   id: Integer, required
#   extra: String, required
# Returns reference_beside_properties_Base_2 & {
#   "extra" => String,
# }
def tools.reference_beside_properties(id:, extra:); end
# Case descriptions that end comments.
#   a: String, optional. ends */ here and goes on /* twice */ `x` ${y}
# Returns {
#   # ends */ here and goes on /* twice */ `x` ${y}
#   ?"a" => String,
# }: */ declare const x: any; /*
def tools.descriptions_that_end_comments(a: nil); end
# Case conditions. (also limited by not, also limited by if)
#   country: String, optional
#   zip: String, optional
# Returns {
#   ?"country" => String,
#   ?"zip" => String,
# }: also limited by not, also limited by if
def tools.conditions(country: nil, zip: nil); end
# Case false property.
#   never: bot, optional
#   a: String, optional
# Returns {
#   ?"never" => bot,
#   ?"a" => String,
# }
def tools.false_property(never: nil, a: nil); end
# Calls a tool by its name in the catalog or here.
def tools.call(name, arguments = {}); end
# Calls what it is given at the same time, and returns the results in that order.
def tools.parallel(*callables); end
