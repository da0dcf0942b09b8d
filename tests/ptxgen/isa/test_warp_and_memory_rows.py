"""The meanings of rows that look at other lanes or at memory, on the emulator, against NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgen.target import WARP_SIZE
from tests.ptxgen.isa.operand_values import SHUFFLE_BOUNDS
from tests.ptxgen.isa.probe import Probe
from tests.ptxgen.isa.rows import cases
from tests.ptxgen.isa.running import WORD, emulated, numbers

Array = NDArray[Any]


def probes(name: str, **modifiers: str) -> Iterator[tuple[Probe, list[Array], list[Array]]]:
    """The probes of rows called `name` with these modifiers: each with its inputs and outputs, [64, elements]."""
    any_probe = False
    for batch, inputs, outputs in emulated(name):
        for probe in batch.probes:
            if modifiers.items() <= dict(probe.modifiers).items():
                any_probe = True
                yield probe, [numbers(inputs, f) for f in probe.inputs], [numbers(outputs, f) for f in probe.outputs]
    assert any_probe, f"no probe of {name} has {modifiers}"


def warps(values: Array) -> list[Array]:
    return [values[i : i + WARP_SIZE] for i in range(0, len(values), WARP_SIZE)]


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shuffle_follows_the_pseudo_code_of_the_isa(mode: str) -> None:
    for _, (a, b, c), (d, p) in probes("shfl", mode=mode):
        for w in range(0, len(a), WARP_SIZE):
            for lane in range(WARP_SIZE):
                by, bound, segment = int(b[w + lane, 0]) & 31, int(c[w + lane, 0]) & 31, int(c[w + lane, 0]) >> 8 & 31
                last = (lane & segment) | (bound & ~segment)
                source = {
                    "up": lane - by, "down": lane + by, "bfly": lane ^ by, "idx": (lane & segment) | (by & ~segment),
                }[mode]  # fmt: skip
                valid = source >= last if mode == "up" else source <= last
                assert d[w + lane, 0] == a[w + (source if valid else lane), 0]
                assert p[w + lane, 0] == valid
    assert 0 in SHUFFLE_BOUNDS  # `up` over a whole warp is among them


@pytest.mark.parametrize(("mode", "decide"), [("all", np.all), ("any", np.any), ("uni", lambda p: p.all() or not p.any())])
def test_vote_decides_for_the_whole_warp(mode: str, decide: Any) -> None:
    for _, (a,), (d,) in probes("vote", mode=mode):
        for said, voted in zip(warps(a), warps(d), strict=True):
            assert (voted == int(decide(said != 0))).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bar_red", "barrier_red"])
@pytest.mark.parametrize(("op", "combined"), [("popc", np.sum), ("and", np.all), ("or", np.any)])
def test_a_barrier_combines_what_its_threads_bring(name: str, op: str, combined: Any) -> None:
    for _, (c,), (d,) in probes(name, op=op):
        for brought, given in zip(warps(c), warps(d), strict=True):
            assert (given == int(combined(brought != 0))).all()


def test_ballot_has_a_bit_for_each_lane() -> None:
    for _, (a,), (d,) in probes("vote", mode="ballot"):
        for said, voted in zip(warps(a), warps(d), strict=True):
            assert (voted == sum(int(x != 0) << i for i, x in enumerate(said[:, 0]))).all()


def test_match_any_finds_the_lanes_with_the_same_value() -> None:
    for _, (a,), (d,) in probes("match", mode="any"):
        for x, masks in zip(warps(a), warps(d), strict=True):
            expected = [sum(1 << i for i in range(WARP_SIZE) if x[i, 0] == x[lane, 0]) for lane in range(WARP_SIZE)]
            assert masks[:, 0].tolist() == expected


def test_match_all_gives_the_mask_only_if_one_value_is_held() -> None:
    seen = set()
    for _, (a,), (d, p) in probes("match", mode="all"):
        for x, masks, agreed in zip(warps(a), warps(d), warps(p), strict=True):
            same = bool((x == x[0]).all())
            seen.add(same)
            assert (masks == (0xFFFFFFFF if same else 0)).all()
            assert (agreed == same).all()
    assert seen == {True, False}


@pytest.mark.parametrize("op", ["add", "min", "max", "and", "or", "xor"])
def test_redux_reduces_over_the_warp(op: str) -> None:
    combine: Any = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
                    "xor": np.bitwise_xor}[op]  # fmt: skip
    for probe, (a,), (d,) in probes("redux", op=op):
        typed = a.view(np.int32) if probe.modifiers["type"] == "s32" else a
        for x, reduced in zip(warps(typed), warps(d.view(typed.dtype)), strict=True):
            with np.errstate(over="ignore"):
                assert (reduced == combine.reduce(x[:, 0], dtype=typed.dtype)).all()


def test_activemask_and_elect_know_a_full_warp() -> None:
    for _, _, (d,) in probes("activemask"):
        assert (d == 0xFFFFFFFF).all()
    for _, _, (d, p) in probes("elect"):
        assert (d == 0).all()
        assert p[:, 0].tolist() == [1, *[0] * 31] * (len(p) // WARP_SIZE)


@pytest.mark.parametrize("name", cases(["ld", "ld_nc"]))
def test_load_gives_the_elements_and_extends_by_their_own_type(name: str) -> None:
    constant = (37 * np.arange(16) % 256).astype(np.uint8)
    for probe, inputs, (d,) in probes(name):
        space = probe.modifiers.get("space", "")
        if space.startswith("param"):
            expected = np.array([WORD], np.uint64).view(d.dtype)[: d.shape[1]]
        elif space == "const":
            expected = constant.view(d.dtype)[: d.shape[1]]
        else:
            expected = inputs[0]
        assert (d == expected).all(), probe.instruction


@pytest.mark.slow
def test_a_load_of_one_address_gives_all_lanes_the_same() -> None:
    for probe, (x,), (d,) in probes("ldu"):
        assert (d == np.repeat(x[::WARP_SIZE], WARP_SIZE, axis=0)).all(), probe.instruction


@pytest.mark.parametrize(("name", "work"), [("rcp_approx_ftz", lambda x: 1 / x), ("rsqrt_approx_ftz", lambda x: 1 / x**0.5)])
def test_gross_approximations_are_near_and_have_an_empty_low_half(name: str, work: Any) -> None:
    for _, (a,), (d,) in probes(name):
        assert not (d & 0xFFFFFFFF).any()
        least = np.finfo(np.float64).tiny
        x = (a & np.uint64(0xFFFFFFFF00000000)).view(np.float64)
        with np.errstate(all="ignore"):
            x = np.where(np.abs(x) < least, np.copysign(0.0, x), x)
            expected = np.where(np.isnan(x), np.nan, work(x) if name[1] == "c" else np.copysign(1, x) / np.sqrt(x))
            expected = np.where(np.abs(expected) < least, np.copysign(0.0, expected), expected)
            got = d.view(np.float64)
            near = np.abs(got - expected) <= np.abs(expected) * 2.0**-20
        same = (got == expected) & (np.signbit(got) == np.signbit(expected))
        assert (near | same | (np.isnan(got) & np.isnan(expected))).all()


@pytest.mark.slow
def test_store_writes_every_element() -> None:
    for probe, inputs, (d,) in probes("st"):
        assert (d == np.concatenate(inputs, axis=1)).all(), probe.instruction


UPDATES: dict[str, Any] = {
    "add": lambda old, b: old + b, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "exch": lambda old, b: b, "inc": lambda old, b: np.where(old >= b, 0, old + 1),
    "dec": lambda old, b: np.where((old == 0) | (old > b), b, old - 1),
}  # fmt: skip


@pytest.mark.parametrize("name", ["atom", "red"])
def test_atomic_updates_memory_and_returns_what_was_there(name: str) -> None:
    for probe, (start, b), outputs in probes(name):
        type = probe.modifiers["type"]
        if type[0] == "f":
            continue
        kind = np.dtype(f"{'i' if type[0] == 's' else 'u'}{start.itemsize}")
        with np.errstate(over="ignore"):
            expected = UPDATES[probe.modifiers["op"]](start.view(kind), b.view(kind)).astype(kind)
        assert (outputs[0].view(kind) == expected).all(), probe.instruction
        if name == "atom":
            assert (outputs[1] == start).all()


def test_float_atomic_flushes_subnormals_in_global_memory_and_keeps_them_in_shared_memory() -> None:
    def flush(x: Array) -> Array:
        return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)

    for probe, (start, b), outputs in probes("atom", op="add", type="f32"):
        x, y = start.view(np.float32), b.view(np.float32)
        with np.errstate(all="ignore"):
            shared = probe.modifiers.get("space", "").startswith("shared")
            expected = x + y if shared else flush(flush(x) + flush(y))
        nan = np.isnan(expected)
        got = outputs[0].view(np.float32)
        assert (np.isnan(got) == nan).all()
        assert (got.view(np.uint32)[~nan] == expected.view(np.uint32)[~nan]).all(), probe.instruction


def test_compare_and_swap_swaps_only_what_it_expected() -> None:
    for _, (start, b, c), (cell, old) in probes("atom_cas"):
        assert (old == start).all()
        assert (cell == np.where(start == b, c, start)).all()


@pytest.mark.parametrize("trans", ["", "trans"])
def test_ldmatrix_deals_rows_of_eight_halves(trans: str) -> None:
    for probe, (words,), (d,) in probes("ldmatrix"):
        if probe.modifiers.get("trans", "") != trans:
            continue
        count = int(probe.modifiers["num"][1:])
        for lines, dealt in zip(warps(words), warps(d), strict=True):
            matrices = lines.reshape(-1).view(np.uint16).reshape(count, 8, 8)
            if trans:
                matrices = matrices.transpose(0, 2, 1)
            expected = np.ascontiguousarray(matrices).reshape(count, -1).view(np.uint32).reshape(count, WARP_SIZE).T
            assert (dealt == expected).all()


def test_stmatrix_undoes_ldmatrix() -> None:
    for probe, inputs, (stored,) in probes("stmatrix"):
        count = int(probe.modifiers["num"][1:])
        fragments = np.concatenate(inputs[1:], axis=1)
        for fragment, rows in zip(warps(fragments), warps(stored), strict=True):
            matrices = np.ascontiguousarray(fragment.T).view(np.uint16).reshape(count, 8, 8)
            if "trans" in probe.modifiers:
                matrices = matrices.transpose(0, 2, 1)
            assert (rows.reshape(-1).view(np.uint16) == matrices.reshape(-1)).all()


def _elements(words: Array, type: str) -> Array:
    """[32, registers] words -> [32, registers, elements] of float64."""
    if type in ("u8", "s8"):
        return words.view(np.uint8 if type == "u8" else np.int8).reshape(*words.shape, 4).astype(np.float64)
    if type == "tf32":
        return (words & 0xFFFFE000).view(np.float32).reshape(*words.shape, 1).astype(np.float64)
    halves = words.view(np.uint16).reshape(*words.shape, 2)
    if type == "f16":
        return halves.view(np.float16).astype(np.float64)
    return (halves.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def _matrices(a: Array, b: Array, a_type: str, b_type: str) -> tuple[Array, Array]:
    """A [16, k] and B [k, 8] from the fragments of a warp, by the figures of PTX ISA 9.7.14.5."""
    left, right = _elements(a, a_type), _elements(b, b_type)
    per, k = left.shape[2], 4 * left.shape[2] * (a.shape[1] // 2)
    big, small = np.zeros((16, k)), np.zeros((k, 8))
    for lane in range(WARP_SIZE):
        group, member = lane // 4, lane % 4
        for register in range(a.shape[1]):
            start = member * per + register // 2 * 4 * per
            big[group + 8 * (register % 2), start : start + per] = left[lane, register]
        for register in range(b.shape[1]):
            start = member * per + register * 4 * per
            small[start : start + per, group] = right[lane, register]
    return big, small


def _accumulator(c: Array) -> Array:
    """[16, 8] from four values a lane."""
    full = np.zeros((16, 8))
    for lane in range(WARP_SIZE):
        for i in range(4):
            full[lane // 4 + 8 * (i // 2), 2 * (lane % 4) + i % 2] = c[lane, i]
    return full


@pytest.mark.slow
def test_mma_multiplies_matrices() -> None:
    shapes = set()
    for probe, (a, b, c), (d,) in probes("mma"):
        words = probe.instruction.split()[0].split(".")
        shapes.add((words[3], words[-3]))
        a_type, b_type, out = words[-3], words[-2], words[-1]
        for w in range(0, len(a), WARP_SIZE):
            lanes = slice(w, w + WARP_SIZE)
            big, small = _matrices(a[lanes], b[lanes], a_type, b_type)
            start, got = ({"f16": np.float16, "f32": np.float32, "s32": np.int32}[out] for _ in range(2))
            total = big @ small + _accumulator(c[lanes].view(start).astype(np.float64))
            result = _accumulator(d[lanes].view(got).astype(np.float64))
            if out != "s32":
                size = np.abs(big) @ np.abs(small) + np.abs(_accumulator(c[lanes].view(start).astype(np.float64)))
                assert (np.abs(result - total) <= size * (2.0**-10 if out == "f16" else 2.0**-20)).all(), probe.instruction
            elif "satfinite" in words:
                assert (result == np.clip(total, -(2**31), 2**31 - 1)).all(), probe.instruction
            else:
                assert ((result - total) % 2**32 == 0).all(), probe.instruction
    assert {shape for shape, _ in shapes} == {"m16n8k4", "m16n8k8", "m16n8k16", "m16n8k32"}


def test_async_copy_fills_with_zeros_what_it_does_not_take() -> None:
    for probe, inputs, outputs in probes("cp_async"):
        for number, (source, copied) in enumerate(zip(inputs, outputs, strict=True)):
            size = 4 * source.shape[1]
            taken = (size, 0, size - 1)[number % 3]
            expected = source.copy().view(np.uint8)
            expected[:, taken:] = 0
            assert (copied.view(np.uint8) == expected).all(), probe.instruction


@pytest.mark.parametrize("name", ["add_cc", "addc", "sub_cc", "subc", "mad_cc", "madc"])
def test_carry_is_taken_in_and_passed_on(name: str) -> None:
    for probe, inputs, (d, seen) in probes(name):
        bits = 8 * d.itemsize
        modulus = 1 << bits
        for lane in range(len(d)):
            x, y, a, b, *c = (int(source[lane, 0]) for source in inputs)
            before = (x + y) >> bits if name[:-3] not in ("add", "sub", "mad") else 0
            if name.startswith("mad"):
                signed = probe.modifiers["type"][0] == "s"
                product = _signed(a, bits) * _signed(b, bits) if signed else a * b
                term = (product >> bits if probe.modifiers["half"] == "hi" else product) % modulus
                total = term + c[0] + before
            elif name.startswith("sub"):  # a + ~b + 1: the flag is a carry here too
                total = a + (modulus - 1 - b) + (1 if name == "sub_cc" else before)
            else:
                total = a + b + before
            writes = name.endswith("_cc") or "cc" in probe.modifiers
            flag = int(not 0 <= total < modulus) if writes else (x + y) >> bits
            assert (int(d[lane, 0]), int(seen[lane, 0])) == (total % modulus, flag), probe.instruction


def _signed(x: int, bits: int) -> int:
    return x - (1 << bits) if x >> bits - 1 else x


def test_branches_skip_and_calls_return() -> None:
    for probe, (value, condition), (d,) in probes("bra"):
        jumps = np.ones(len(value), bool) if "uni" in probe.modifiers else condition[:, 0] >= 1 << 31
        assert (d[:, 0] == value[:, 0] + (~jumps).astype(np.uint32)).all()
    for probe, (value, index), (d,) in probes("brx_idx"):
        first = np.ones(len(value), bool) if "uni" in probe.modifiers else index[:, 0] % 2 == 0
        assert (d[:, 0] == value[:, 0] + first.astype(np.uint32)).all()
    for _, (value,), (d,) in probes("call"):
        assert (d == value + np.uint32(1)).all()


def test_address_windows_tell_spaces_apart_and_conversions_undo_each_other() -> None:
    for probe, _, (shared, local, everywhere) in probes("isspacep"):
        space = probe.modifiers["space"].partition("::")[0]
        assert [int(x[0, 0]) for x in (shared, local, everywhere)] == [space == s for s in ("shared", "local", "global")]
    for probe, _, (difference,) in probes("cvta"):
        assert not difference.any(), probe.instruction
