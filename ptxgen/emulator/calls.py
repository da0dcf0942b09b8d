"""The calls of a kernel, inlined: each becomes its function's instructions, with names of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

from ptxgen.emulator.program import (
    SINK,
    Call,
    Guard,
    Negated,
    ParsedFunction,
    ParsedLabel,
    ParsedOperand,
    ParsedParameter,
    Program,
    Step,
    SymbolAddress,
    Variable,
)
from ptxgen.errors import ParseError
from ptxgen.isa.effects import Effect
from ptxgen.isa.instructions import row_of
from ptxgen.isa.operands import Address, Callee, Immediate, LabelRef, Register, Symbol, Vector
from ptxgen.isa.printf import VPRINTF
from ptxgen.isa.rows.control import bra
from ptxgen.isa.rows.control import call as call_row
from ptxgen.isa.rows.memory import ld_space, st_space
from ptxgen.isa.rows.move import mov
from ptxgen.types import PRED

_MAX_INLINED = 100_000
_MAX_DEPTH = 100  # calls within calls


class Inlined:
    """An entry with its calls inlined: its instructions and labels, and the registers and variables of all that was inlined.
    ParseError where a call cannot be."""

    def __init__(self, program: Program, entry: str) -> None:
        _check_calls(program, entry)
        function = program.functions[entry]
        self.registers, self.variables = dict(function.registers), dict(function.variables)
        self._program, self._numbers = program, count(1)
        self.items = list(self._inlined(function))

    def _inlined(self, function: ParsedFunction) -> Iterator[Step | ParsedLabel]:
        for item in function.items:
            if isinstance(item, Call) and is_print(self._program, item):
                yield _print(item)
            elif isinstance(item, Call):
                yield from self._body(function, item)
            else:
                yield item

    def _body(self, caller: ParsedFunction, call: Call) -> Iterator[Step | ParsedLabel]:
        callee = self._program.functions[call.callee]
        suffix = f"@{next(self._numbers)}"
        after = f"return{suffix}"
        renaming = _Renaming(suffix, callee)
        for register in callee.registers.values():
            self.registers[register.name + suffix] = Register(register.name + suffix, register.type)
        for variable in callee.variables.values():
            name = renaming.symbols[variable.name]
            self.variables[name] = replace(variable, name=name)
        if len(call.arguments) != len(callee.parameters):
            raise ParseError(f"{call.callee} takes {len(callee.parameters)} arguments, got {len(call.arguments)}", call.line)
        if len(call.results) != len(callee.results):
            raise ParseError(
                f"{call.callee} returns {len(callee.results)} values, got places for {len(call.results)}", call.line
            )
        if call.guard is not None:
            yield _jump(after, Guard(call.guard.register, not call.guard.negated), call)
        copies_out: list[Step] = []
        for parameter, argument in zip(callee.parameters, call.arguments, strict=True):
            if parameter.register is not None:
                _check_width(parameter.register, argument, call)
                yield _move(Register(parameter.register.name + suffix, parameter.register.type), argument, call)
            elif isinstance(argument, SymbolAddress):
                _check_memory(parameter, caller, argument.name, call)
                renaming.symbols[parameter.name] = argument.name
            else:
                yield _step(st_space, parameter, call, a=self._memory_of(parameter, renaming), b=argument)
        for parameter, name in zip(callee.results, call.results, strict=True):
            target = caller.registers.get(name)
            if name == SINK:
                if parameter.register is None:
                    self._memory_of(parameter, renaming)
            elif parameter.register is not None:
                _check_width(parameter.register, target, call)
                source = Register(parameter.register.name + suffix, parameter.register.type)
                copies_out.append(_move(caller.registers[name], source, call))
            elif target is not None:
                copies_out.append(_step(ld_space, parameter, call, d=target, a=self._memory_of(parameter, renaming)))
            else:
                _check_memory(parameter, caller, name, call)
                renaming.symbols[parameter.name] = name
        for item in self._inlined(callee):
            if isinstance(item, ParsedLabel):
                yield ParsedLabel(item.name + suffix, item.line)
            elif item.row.effect is Effect.RETURN:
                yield _jump(after, renaming.guard(item.guard), item)
            else:
                yield renaming.step(item)
        yield ParsedLabel(after, call.line)
        yield from copies_out

    def _memory_of(self, parameter: ParsedParameter, renaming: _Renaming) -> Address:
        """Memory for a parameter whose value the caller has, or wants, in a register."""
        name = renaming.symbols[parameter.name] = parameter.name + renaming.suffix
        self.variables[name] = Variable(name, "param", parameter.type, parameter.size, parameter.alignment)
        return Address(Symbol(name))


def _check_calls(program: Program, entry: str) -> None:
    """ParseError where `entry` cannot have its calls inlined, before any is."""
    measured: dict[str, tuple[int, int]] = {}

    def measure(function: ParsedFunction, stack: tuple[str, ...]) -> tuple[int, int]:
        """Instructions with all calls inlined, and how deep those are within each other."""
        size = depth = 0
        for item in function.items:
            size += 1
            if isinstance(item, Call) and not is_print(program, item):
                callee = program.functions.get(item.callee)
                if callee is None or not callee.is_defined:
                    raise ParseError(f"call of {item.callee}, which this module does not define", item.line)
                if item.callee in stack:
                    raise ParseError(f"{item.callee} calls itself, which is not emulated", item.line)
                if item.callee not in measured and len(stack) <= _MAX_DEPTH:
                    measured[item.callee] = measure(callee, (*stack, item.callee))
                inner_size, inner_depth = measured.get(item.callee, (0, _MAX_DEPTH))
                size, depth = size + inner_size, max(depth, inner_depth + 1)
            if depth > _MAX_DEPTH:
                raise ParseError(f"{stack[0]} has more than {_MAX_DEPTH} calls within each other", item.line)
            if size > _MAX_INLINED:
                raise ParseError(f"{stack[0]} has more than {_MAX_INLINED} instructions with its calls inlined", item.line)
        return size, depth

    measure(program.functions[entry], (entry,))


def is_print(program: Program, call: Call) -> bool:
    """Whether it calls the driver's vprintf, which a module declares and does not define."""
    callee = program.functions.get(call.callee)
    return call.callee == VPRINTF and (callee is None or not callee.is_defined)


def _print(call: Call) -> Step:
    """The call as an instruction of its own. ParseError if its operands are no parameters."""
    names = [argument.name for argument in call.arguments if isinstance(argument, SymbolAddress)]
    if len(call.arguments) != 2 or len(names) != 2 or len(call.results) > 1:
        raise ParseError(f"{VPRINTF} takes two .param variables, a format and its values, and returns into one", call.line)
    function = Callee(VPRINTF, results=call.results, arguments=tuple(names))
    return Step(row_of(call_row), {}, {"function": function}, call.guard, call.line, call.source)


def _check_width(register: Register, argument: ParsedOperand | None, call: Call) -> None:
    if isinstance(argument, Immediate) or (isinstance(argument, Register) and argument.type.bits == register.type.bits):
        return
    got = f"{argument}, which is {argument.type}" if isinstance(argument, Register) else "something that is no register"
    raise ParseError(f"call of {call.callee}: {register} is {register.type}, got {got}", call.line)


def _check_memory(parameter: ParsedParameter, caller: ParsedFunction, name: str, call: Call) -> None:
    """ParseError where a variable in parameter space is not what a parameter of the callee is declared as."""
    own = (caller.variables.get(name), *(p for p in (*caller.parameters, *caller.results) if p.name == name))
    given = next((one for one in own if one is not None), None)
    if given is not None and (given.size, given.type.bits) != (parameter.size, parameter.type.bits):
        raise ParseError(
            f"call of {call.callee}: {parameter.name} has {parameter.size} bytes of .{parameter.type}, "
            f"got {name}, which has {given.size} bytes of .{given.type}",
            call.line,
        )


def _step(meaning: Callable[..., Any], parameter: ParsedParameter, call: Call, **operands: ParsedOperand) -> Step:
    """A load or store of a parameter's memory, as the call is guarded. ParseError for a register that it does not fit."""
    row, modifiers = row_of(meaning), {"space": "param", "type": parameter.type.name}
    value = operands.get("b", operands.get("d"))
    fits = isinstance(value, Register | Immediate) and not parameter.is_array and value.type.bits == parameter.type.bits
    problems = row.problems(modifiers, operands) if fits else [f"cannot be {value}"]  # type: ignore[arg-type]
    if problems:
        raise ParseError(f"call of {call.callee}: {parameter.name} is .{parameter.type}: {problems[0]}", call.line)
    return Step(row, modifiers, operands, call.guard, call.line, call.source)


class _Renaming:
    def __init__(self, suffix: str, callee: ParsedFunction) -> None:
        self.suffix = suffix
        self.own = callee.registers  # those of what it calls are renamed already
        self.symbols = {
            v.name: v.name + (f"@{callee.name}" if v.space == "shared" else suffix) for v in callee.variables.values()
        }  # shared memory is there once, however often the function is called

    def guard(self, guard: Guard | None) -> Guard | None:
        return None if guard is None else Guard(self.register(guard.register), guard.negated)

    def register(self, register: Register) -> Register:
        return Register(register.name + self.suffix, register.type) if register.name in self.own else register

    def operand(self, operand: ParsedOperand) -> ParsedOperand:
        if isinstance(operand, Register):
            return self.register(operand)
        if isinstance(operand, Negated):
            return Negated(self.register(operand.register))
        if isinstance(operand, Vector):
            return Vector(tuple(self.register(x) if isinstance(x, Register) else x for x in operand.elements))
        if isinstance(operand, Address):
            if isinstance(operand.base, Register):
                return Address(self.register(operand.base), operand.offset)
            if isinstance(operand.base, Symbol):
                return Address(Symbol(self.symbols.get(operand.base.name, operand.base.name)), operand.offset)
        if isinstance(operand, SymbolAddress):
            return SymbolAddress(self.symbols.get(operand.name, operand.name), operand.offset)
        if isinstance(operand, Callee):
            results, arguments = (
                tuple(self.symbols.get(n, n) for n in names) for names in (operand.results, operand.arguments)
            )
            return replace(operand, results=results, arguments=arguments)
        return operand

    def step(self, step: Step) -> Step:
        operands = {name: self.operand(o) for name, o in step.operands.items()}
        targets = tuple(target + self.suffix for target in step.targets)
        return replace(step, operands=operands, guard=self.guard(step.guard), targets=targets)


def _jump(target: str, guard: Guard | None, like: Step | Call) -> Step:
    return Step(row_of(bra), {}, {"target": LabelRef(target)}, guard, like.line, like.source, (target,))


def _move(target: Register, source: ParsedOperand, call: Call) -> Step:
    modifiers = {"type": "pred" if target.type == PRED else f"b{target.type.bits}"}
    return Step(row_of(mov), modifiers, {"d": target, "a": source}, call.guard, call.line, call.source)
