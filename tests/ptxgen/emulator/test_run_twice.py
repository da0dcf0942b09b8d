"""Every `run` starts from the text alone: a second one does not see what the first left in the module's variables."""

from __future__ import annotations

import numpy as np

from ptxgen.emulator import run

COUNTER = """
.version 6.3
.target sm_75
.address_size 64
.global .u32 counter = 5;
.visible .entry count(.param .u64 y)
{
    .reg .u32 %r<2>;
    .reg .u64 %rd0;
    ld.param.u64 %rd0, [y];
    ld.global.u32 %r0, [counter];
    add.u32 %r1, %r0, 1;
    st.global.u32 [counter], %r1;
    st.global.u32 [%rd0], %r1;
    ret;
}
"""


def test_module_variables_start_anew_in_every_run() -> None:
    for _ in range(2):
        y = np.zeros(1, np.uint32)
        assert not run(COUNTER, "count", 1, 1, [y])
        assert y[0] == 6
