"""Prints all mutants of a file as JSON: ``build/mutation-tools/bin/python operators.py FILE``.

This program alone imports cosmic-ray, and nothing of ours: it runs in an environment of its own.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: The replacements that are tried: of the eleven for a binary operator those that a person might confuse.
_BINARY = (
    *("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_Mul", "Pow_Mul", "LShift_RShift"),
    *("RShift_LShift", "BitOr_BitAnd", "BitAnd_BitOr", "BitXor_BitAnd"),
)
_COMPARISON = (
    *("Eq_NotEq", "NotEq_Eq", "Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt", "Gt_GtE", "Gt_LtE", "GtE_Gt", "GtE_Lt"),
    *("Is_IsNot", "IsNot_Is"),
)
_OTHERS = (
    *("AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "NumberReplacer"),
    *("RemoveDecorator", "ZeroIterationForLoop", "ReplaceUnaryOperator_Delete_Not"),
    "ReplaceUnaryOperator_Delete_USub",
)
NAMES = (
    *(f"ReplaceBinaryOperator_{name}" for name in _BINARY),
    *(f"ReplaceComparisonOperator_{name}" for name in _COMPARISON),
    *_OTHERS,
)


class _Bare(ast.NodeTransformer):
    """Removes what no test can see: annotations, and which parameters have to be named."""

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        # A bare * is no product.
        node.args = [*node.posonlyargs, *node.args, *node.kwonlyargs]
        node.defaults += [one for one in node.kw_defaults if one is not None]
        node.posonlyargs, node.kwonlyargs, node.kw_defaults = [], [], []
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        # Fields of structs and dataclasses need an annotation, not what is in it.
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)


def mutants(text: str) -> Iterator[dict[str, Any]]:
    """Yields all mutants: operator, line, and the lines before and after."""
    from cosmic_ray import plugins  # type: ignore[import-not-found,unused-ignore]
    from cosmic_ray.ast import ast_nodes, get_ast  # type: ignore[import-not-found,unused-ignore]
    from cosmic_ray.mutating import mutate_code  # type: ignore[import-not-found,unused-ignore]

    tree, plain = get_ast(text), _dumped(text)
    for name in NAMES:
        operator = plugins.get_operator(f"core/{name}")()
        many = sum(len(list(operator.mutation_positions(node))) for node in ast_nodes(tree))
        for occurrence in range(many):
            changed = mutate_code(text, operator, occurrence)
            if changed is None or changed == text:
                continue
            try:
                if _dumped(changed) == plain:
                    continue
            except SyntaxError:
                continue
            yield {"operator": name, **_difference(text, changed)}


def _dumped(text: str) -> str:
    return ast.dump(_Bare().visit(ast.parse(text)))


def _difference(text: str, changed: str) -> dict[str, Any]:
    """Returns the lines that differ."""
    before, after = text.split("\n"), changed.split("\n")
    start = next(i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b)
    end = 1
    while end < min(len(before), len(after)) - start and before[-end] == after[-end]:
        end += 1
    stop = len(before) - end + 1
    return {
        "line": start + 1,
        "before": "\n".join(before[start:stop]),
        "after": "\n".join(after[start : len(after) - end + 1]),
    }


if __name__ == "__main__":
    json.dump(list(mutants(Path(sys.argv[1]).read_text("utf-8"))), sys.stdout)
