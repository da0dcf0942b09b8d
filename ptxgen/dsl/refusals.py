"""What Python offers for its own numbers and sequences, and what registers and places in memory say instead: the cure. A type
checker sees none of these methods, so it refuses the same lines by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from ptxgen.dsl.author import author_line
from ptxgen.errors import AuthorError

CURES = {
    "absolute": "k.abs(x)", "fabs": "k.abs(x)", "sqrt": "k.sqrt(x)", "square": "x * x", "reciprocal": "1.0 / x",
    "exp": "mathlib.exp(k, x)", "tanh": "mathlib.tanh(k, x)", "sigmoid": "mathlib.sigmoid(k, x)",
    "silu": "mathlib.silu(k, x)", "gelu": "mathlib.gelu(k, x)", "rsqrt": "mathlib.rsqrt(k, x)",
    "exp2": "k.ex2_approx(x)", "ex2": "k.ex2_approx(x)", "log2": "k.lg2_approx(x)", "lg2": "k.lg2_approx(x)",
    "log": "k.lg2_approx(x) * math.log(2)", "sin": "k.sin_approx(x)", "cos": "k.cos_approx(x)",
    "floor": 'k.cvt(x, rnd="rmi", result=x.type)', "ceil": 'k.cvt(x, rnd="rpi", result=x.type)',
    "trunc": 'k.cvt(x, rnd="rzi", result=x.type)', "rint": 'k.cvt(x, rnd="rni", result=x.type)',
    "maximum": "k.max(x, y)", "fmax": "k.max(x, y)", "minimum": "k.min(x, y)", "fmin": "k.min(x, y)", "isnan": "x != x",
}  # fmt: skip
"""By the name that NumPy and others give a function of numbers: what an author writes for it."""

_FUNCTIONS = f"functions are {CURES['sqrt']}, {CURES['sin']}, {CURES['exp']}, ... (ptxgen.dsl.mathlib, docs/instructions.md)"

# The ufuncs that are operators. NumPy calls them for `np.float32(2) * x`.
_OPERATORS = frozenset({
    "add", "subtract", "multiply", "divide", "floor_divide", "remainder", "power", "negative", "positive",
    "bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift", "right_shift",
    "less", "less_equal", "greater", "greater_equal", "equal", "not_equal",
})  # fmt: skip


def cure(name: str) -> str:
    """The hint for a function of this name; empty if there is none."""
    if name not in CURES:
        return ""
    found = CURES[name]
    return f"write {found}" + (" (from ptxgen.dsl import mathlib)" if found.startswith("mathlib") else "")


def _no_value(python: str, hint: str) -> Callable[..., NoReturn]:
    def refuse(self: Any, *_: object) -> NoReturn:
        raise AuthorError(
            f"{self.register} ({self.type}) has no value while the kernel is being written, which {python} needs",
            self.k.where(),
            hint,
        )

    return refuse


def _no_operator(operator: str, hint: str) -> Callable[..., NoReturn]:
    def refuse(self: Any, *_: object) -> NoReturn:
        raise AuthorError(f"registers have no operator {operator} ({self.register} is {self.type})", self.k.where(), hint)

    return refuse


def _no_sequence(self: Any, *_: object) -> NoReturn:
    raise AuthorError(
        f"{self.register} ({self.type}) is one register, not a sequence",
        self.k.where(),
        "loop with `for i in k.strided(start, stop):`; load several registers with k.load_vector, an element with k.load(x[i])",
    )


def _whole(function: str) -> Callable[..., NoReturn]:
    return _no_value(f"{function}(x)", f"{cure('rint' if function == 'round' else function)}; k.s32(x) converts toward zero")


class OfTheKernel:
    """A register: its value is known to the kernel alone."""

    __slots__ = ()

    if not TYPE_CHECKING:
        __index__ = _no_value(
            "an index of a list and range()",
            "loop with `for i in k.strided(start, stop):`; choose with k.select(condition, a, b) or load from an array",
        )
        __int__ = _no_value("int(x)", "convert with k.s32(x) or k.u32(x)")
        __float__ = _no_value("float(x) or a function of math", f"convert with k.f32(x); {_FUNCTIONS}")
        __abs__ = _no_value("abs(x)", cure("fabs"))
        __round__, __floor__, __ceil__, __trunc__ = map(_whole, ("round", "floor", "ceil", "trunc"))
        __divmod__ = __rdivmod__ = _no_operator("divmod", "write both: x // y and x % y")
        __pow__ = _no_operator("**", "multiply: x * x; 2 to a power of whole numbers is 1 << x")
        __rpow__ = _no_operator("**", f"2 to a power is 1 << x of whole numbers, {CURES['exp2']} of floats")
        __matmul__ = __rmatmul__ = _no_operator("@", "write `x @= y` to change a register, `x * y` for a product")
        __pos__ = _no_operator("+", "leave it out: x")
        __iter__ = __len__ = __getitem__ = __setitem__ = __delitem__ = __reversed__ = _no_sequence

        def __format__(self, form: str) -> str:
            return _formless(self, form) if form else str(self)

        def __array__(self, dtype: Any = None, copy: object = None) -> Any:
            import numpy as np  # late: NumPy is loaded if this is called

            if dtype not in (None, np.dtype(object)):
                _no_value("an array of numbers", "convert with k.f32(x)")(self)
            held = np.empty((), object)  # as ever: an array of NumPy may hold registers
            held[()] = self
            return held

        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
            name = ufunc.__name__
            if name not in _OPERATORS:
                _no_value(f"np.{name}(x)", cure(name) or _FUNCTIONS)(self)
            import numpy as np

            return getattr(ufunc, method)(*(np.asarray(one).astype(object) for one in inputs), **{"dtype": object, **options})


_formless = _no_value("a format of numbers", "its name is f'{x}'; what it holds is known when the kernel runs")


LOAD = "load it: k.load(x[i]); an instruction that takes an address gets x[i].address"


def _not_loaded(self: object, *_: object) -> NoReturn:
    raise AuthorError(f"{self} is a place, not a number", author_line(), LOAD)


class Place:
    """A place in memory: what is there has to be loaded."""

    if not TYPE_CHECKING:
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _not_loaded
        __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __neg__ = __invert__ = __abs__ = _not_loaded
        __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _not_loaded
        __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _not_loaded
        __lt__ = __le__ = __gt__ = __ge__ = __int__ = __float__ = __index__ = __array_ufunc__ = _not_loaded


class Places(Place):
    """An array in memory, which instructions read and write."""

    shape: tuple[int, ...] = (0,)  # one index, unless it says more

    if not TYPE_CHECKING:

        def __setitem__(self, index: object, value: object) -> NoReturn:
            raise AuthorError("assigning to an element writes no store", author_line(), "write k.store(x[i], value)")

        def __iter__(self) -> NoReturn:
            raise AuthorError(
                "an array in memory cannot be iterated over",
                author_line(),
                "loop with `for i in k.strided(start, stop):`, or unroll with `for i in range(n):`, and load x[i]",
            )

        def __len__(self) -> NoReturn:
            raise AuthorError("an array in memory has no len()", author_line(), "an argument's extents are x.shape")
