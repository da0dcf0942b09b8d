"""For the site's reference: a method that a class has by `delegate("_part", Part.method, first...)` (executor/api/delegate.py)
is shown with the signature and docstring that it has at the part. Read from the sources; nothing is imported."""

from __future__ import annotations

import ast
import copy
from typing import Any

import griffe


class Delegates(griffe.Extension):
    """Puts a function in the place of each class attribute whose value is a call of `delegate`."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        """When all modules of a package have been read, so that parts are there."""
        for owner in classes(pkg):
            for name, member in owner.members.items():
                value = getattr(member, "value", None)
                if isinstance(value, griffe.ExprCall) and value.function.canonical_name == "delegate":
                    method = pkg.modules_collection[value.arguments[1].canonical_path]  # type: ignore[union-attr]
                    owner.members[name] = shown(method, member, value)


def classes(module: griffe.Module) -> list[griffe.Class]:
    """The classes of a module and of all modules below it."""
    own = [one for one in module.classes.values() if not one.is_alias]
    return own + [one for below in module.modules.values() if not below.is_alias for one in classes(below)]


def shown(method: griffe.Function, member: griffe.Attribute, call: griffe.ExprCall) -> griffe.Function:
    """The method under the name and at the lines that it has at its owner, without the arguments that `delegate` gives it."""
    given = [argument for argument in call.arguments[2:] if not isinstance(argument, griffe.ExprKeyword)]
    named = [argument for argument in call.arguments[2:] if isinstance(argument, griffe.ExprKeyword)]
    function = copy.copy(method)
    function.name, function.parent = member.name, member.parent
    function.lineno, function.endlineno = member.lineno, member.endlineno
    parameters = list(method.parameters)
    function.parameters = griffe.Parameters(parameters[0], *parameters[1 + len(given) :])
    if named:
        function.docstring = griffe.Docstring(ast.literal_eval(str(named[0].value)), parent=function)
    return function
