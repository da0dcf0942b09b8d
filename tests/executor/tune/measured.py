"""Measurements that tests of tuning tables make up."""

from __future__ import annotations

from typing import Any

from executor.choice.choice import GpuProfile
from executor.choice.table import TuningEntry, TuningTable
from executor.device.gpu import GpuModel
from ptxgen.formats import FORMATS

Q4_K, Q6_K = FORMATS["Q4_K"], FORMATS["Q6_K"]
H200 = GpuModel("NVIDIA H200", "sm_90", 132)
HW, MWV = "hw_dp4a_q4k_gemv", "mwv_q4k_gemv"


def entry(k: int, n: int | None, kernel: str = HW, precision: str = "accurate", **facts: Any) -> TuningEntry:
    parameters = facts.pop("parameters", {"digits": 3, "num_warps": 4})
    return TuningEntry(precision, "q4k", k, n, kernel, parameters, **{"seconds": 1e-6, "error": 1e-7} | facts)


def profile(*entries: TuningEntry, shipped: bool = False, precision: str = "accurate") -> GpuProfile:
    return GpuProfile(precision, tables=(TuningTable("a table", H200, entries, shipped),))
