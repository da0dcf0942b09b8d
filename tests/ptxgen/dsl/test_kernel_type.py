"""The module that users import the parts of a kernel type from."""

from __future__ import annotations

from ptxgen.dsl import kernel_type

PUBLIC = {
    "DEPENDENT_SM", "HIDDEN", "MOST_CODE", "PIPELINE_SHARED", "Argument", "Array", "Direction", "HalfForm", "KernelType",
    "LaunchConfig", "Scalar", "Signature", "Work", "addresses", "is_whole", "read", "update", "write",
}  # fmt: skip


def test_kernels_of_users_can_import_every_public_name_from_here() -> None:
    assert set(kernel_type.__all__) == PUBLIC <= vars(kernel_type).keys()
