"""The assembler's figures and complaints, read from nvJitLink's logs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ptxgen.target import ALL, Target
from ptxgen.toolchain import assemble as assembling
from ptxgen.toolchain.assemble import AssembleError, UnsupportedTarget, assemble

TEXT = """.version 6.3
.target sm_75
.address_size 64
.file 1 "norm.py"
.visible .entry example(.param .u64 p)
{
    .reg .u64 %rd<2>;
    .reg .f32 %f<2>;
    .reg .u32 %r<2>;
    .shared .align 16 .b8 stage[320];
    .loc 1 41 0
    ld.param.u64 %rd0, [p];
    ld.global.f32 %f0, [%rd0];
    st.shared.f32 [stage+16], %f0;
    bar.sync 0;
    ld.shared.f32 %f1, [stage+16];
    .loc 1 42 0
    add.rn.f32 %f1, %f1, %f0;
    st.global.f32 [%rd0], %f1;
    ret;
}
"""


@pytest.mark.parametrize("target", ALL, ids=str)
def test_every_target_assembles(target: Target) -> None:
    made = assemble(TEXT, target)
    assert made.cubin.startswith(b"\x7fELF")
    assert made.registers >= 4
    assert (made.shared, made.spill_stores, made.spill_loads, made.stack) == (320, 0, 0, 0)
    assert "Used" in made.log


def test_spills_are_counted() -> None:
    values = 80
    loads = "\n".join(f"ld.volatile.global.f32 %f{i}, [%rd0+{4 * i}];" for i in range(values))
    sums = "\n".join(f"st.volatile.global.f32 [%rd0+{4 * i}], %f{i};" for i in reversed(range(values)))
    head = ".version 6.3\n.target sm_75\n.address_size 64\n.visible .entry crowded(.param .u64 p)\n.maxnreg 32\n"
    text = f"{head}{{\n.reg .u64 %rd<1>;\n.reg .f32 %f<{values}>;\nld.param.u64 %rd0, [p];\n{loads}\n{sums}\nret;\n}}\n"
    made = assemble(text, Target(90))
    assert made.registers <= 32
    assert made.spill_stores > 0
    assert made.spill_loads > 0
    assert made.stack > 0


def test_an_error_names_the_ptx_line_its_text_and_the_authors_line() -> None:
    with pytest.raises(AssembleError) as caught:
        assemble(TEXT.replace("add.rn.f32 %f1, %f1, %f0", "add.rn.f32 %f1, %f1, %r0"), Target(90))
    assert caught.value.ptx_line == 18
    assert str(caught.value).splitlines() == [
        "example does not assemble for sm_90",
        "  ptx line 18: Arguments mismatch for instruction 'add'",
        "    add.rn.f32 %f1, %f1, %r0;",
        "    norm.py:42",
    ]


def test_text_without_loc_has_no_authors_line() -> None:
    plain = "\n".join(line for line in TEXT.splitlines() if ".loc" not in line)
    with pytest.raises(AssembleError) as caught:
        assemble(plain.replace("bar.sync", "barr.sync"), Target(90))
    assert "barr.sync 0;" in str(caught.value)
    assert "norm.py" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "hello", TEXT.replace("6.3", "99.9")])
def test_what_is_not_ptx_is_an_assemble_error(text: str) -> None:
    with pytest.raises(AssembleError, match="does not assemble for sm_90"):
        assemble(text, Target(90))


def test_a_target_older_than_the_text_is_an_assemble_error() -> None:
    with pytest.raises(AssembleError, match="higher than default SM version"):
        assemble(TEXT.replace("sm_75", "sm_90").replace("6.3", "7.8"), Target(80))


def test_a_gpu_that_nvjitlink_does_not_know_is_told_apart() -> None:
    with pytest.raises(UnsupportedTarget, match="cannot write code for sm_70"):
        assemble(TEXT, Target(70))


def test_a_missing_nvjitlink_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    assembling._library.cache_clear()
    try:
        with pytest.raises(AssembleError, match="pip install nvidia-nvjitlink"):
            assemble(TEXT, Target(90))
    finally:
        assembling._library.cache_clear()


def test_importing_the_module_imports_no_cuda() -> None:
    code = "import sys, ptxgen.toolchain.assemble; assert not [name for name in sys.modules if name.startswith('cuda')]"
    subprocess.run([sys.executable, "-c", code], check=True)
