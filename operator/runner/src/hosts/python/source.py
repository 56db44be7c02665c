"""From a program's source to something that can be run.

The source is parsed as it stands and becomes the body of a function, so that `return` works at its
top, and of an async function when it awaits there. Its names are global all the same, as in a module.
"""

import ast
import collections
import inspect
import re

#: How programs in other languages give themselves away, tried only on what is no Python.
OTHERS = {
    "JavaScript": r"^\s*(const|let|var)\s+[\w${\[]|=>|\bfunction\b\s*\w*\s*\(|^\s*(import|export)\s.*\bfrom\b|[;{]\s*$",
    "Ruby": r"^\s*(end|puts\b.*|require\s+['\"].*)\s*$|\bdo\s*(\|[\w, ]+\|)?\s*$|\.each\b",
}


class Rejected(Exception):
    """The source is no program."""

    def __init__(self, error, message):
        super().__init__(message)
        self.error_class = type(error).__name__
        self.line, self.column = getattr(error, "lineno", 0) or 0, max(getattr(error, "offset", 0) or 0, 0)


def compiled(source, name):
    """The code of a function without arguments that runs the program, or makes its coroutine."""
    try:
        return _compiled(source, name)
    except SyntaxError as error:
        raise Rejected(error, _hint(source) + (error.msg or "invalid syntax")) from None
    except (RecursionError, MemoryError):
        raise Rejected(SyntaxError(), "the source is nested too deep") from None
    except ValueError as error:
        raise Rejected(SyntaxError(), _hint(source) + str(error)) from None


def _compiled(source, name):
    tree = ast.parse(source, name)
    body = tree.body
    futures = [each for each in body if isinstance(each, ast.ImportFrom) and each.module == "__future__"]
    body = [_without_annotation(each) for each in body if each not in futures]
    if body and isinstance(body[-1], ast.Expr):
        body[-1] = ast.copy_location(ast.Return(body[-1].value), body[-1])
    body = body or [ast.Pass(lineno=1, col_offset=0)]
    try:
        code = _function(ast.FunctionDef, body, futures, name)
    except SyntaxError as error:
        # "'await' outside async function" and its like.
        if "async" not in error.msg:
            raise
        code = _function(ast.AsyncFunctionDef, body, futures, name)
    return code.replace(co_name="<module>", co_qualname="<module>")


def _function(kind, body, futures, name):
    """The code of a function with this body, whose own names are all global."""
    own = _code(kind, body, futures, name)
    names = sorted({*own.co_varnames, *own.co_cellvars})
    if names:
        body = [ast.Global(names, lineno=1, col_offset=0), *body]
        own = _code(kind, body, futures, name)
    if own.co_flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR):
        at = _first_yield(body)
        raise SyntaxError("'yield' outside function", (name, at.lineno, at.col_offset + 1, None))
    return own


def _first_yield(body):
    nodes = collections.deque(body)
    while not isinstance(node := nodes.popleft(), ast.Yield | ast.YieldFrom):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            nodes.extend(ast.iter_child_nodes(node))
    return node


def _code(kind, body, futures, name):
    nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    function = kind(name="program", args=nothing, body=body, decorator_list=[], lineno=1, col_offset=0)
    function.type_params = []
    tree = ast.fix_missing_locations(ast.Module([*futures, function], type_ignores=[]))
    code = compile(tree, name, "exec", dont_inherit=True)
    return next(each for each in code.co_consts if hasattr(each, "co_code"))


class _Annotations(ast.NodeTransformer):
    """Takes the annotations off the program's own names, which a function may not have on globals."""

    def visit_AnnAssign(self, node):
        if not isinstance(node.target, ast.Name):
            return node
        new = ast.Assign([node.target], node.value) if node.value else ast.Pass()
        return ast.copy_location(new, node)

    def leave(self, node):
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = leave


def _without_annotation(statement):
    return _Annotations().visit(statement)


def _hint(source):
    """Says so when a source that is no Python looks like another language."""
    for language, signs in OTHERS.items():
        if re.search(signs, source[:20_000], re.MULTILINE):
            return f"this looks like {language}, and it was run as Python: "
    return ""
