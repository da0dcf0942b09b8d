"""GEMVs on int8 planes of any format, whether it is registered for them or not."""

from __future__ import annotations

from typing import Any

from ptxgen.dsl.parts import composed
from ptxgen.formats import Format
from ptxgen.kernels.gemv.hw_dp4a import PLAIN, HwDp4aGemv
from ptxgen.kernels.gemv.leave_norm import LeaveNorm
from ptxgen.kernels.gemv.matrices import Fused, FusedWithAnother, GateAndUp
from ptxgen.kernels.gemv.planes import Planes
from ptxgen.kernels.gemv.residual import AddResidual
from ptxgen.kernels.gemv.send_planes import SendPlanes
from ptxgen.kernels.gemv.swiglu import SwiGlu
from ptxgen.kernels.gemv.tokens import Batch


def batched(format: Format, **shape: Any) -> HwDp4aGemv:
    """For m tokens."""
    return _of(format, shape, tokens=Batch)


def residual(format: Format, **shape: Any) -> HwDp4aGemv:
    """Added to y."""
    return _of(format, shape, epilogue=(AddResidual,))


def leaving_norm(format: Format, **shape: Any) -> HwDp4aGemv:
    """Added to y, with what a norm of y needs."""
    return _of(format, shape, epilogue=(AddResidual, LeaveNorm))


def swiglu(format: Format, **shape: Any) -> HwDp4aGemv:
    """Of gate and up, with int8 planes."""
    return _of(format, shape, segments=GateAndUp, epilogue=(SwiGlu, Planes))


def sent_swiglu(format: Format, **shape: Any) -> HwDp4aGemv:
    """Of gate and up, whose int8 planes go to other ranks."""
    return _of(format, shape, segments=GateAndUp, epilogue=(SwiGlu, SendPlanes))


def fused(format: Format, **shape: Any) -> HwDp4aGemv:
    """For two or three matrices."""
    return _of(format, shape, segments=Fused)


def fused_with_another(format: Format, last: Format, **shape: Any) -> HwDp4aGemv:
    """For three matrices, the last of another format."""
    return composed(HwDp4aGemv, {**PLAIN, "format": format, "last": last, "segments": FusedWithAnother}, shape)


def _of(format: Format, shape: dict[str, Any], **parts: Any) -> HwDp4aGemv:
    return composed(HwDp4aGemv, {**PLAIN, "format": format, **parts}, shape)
