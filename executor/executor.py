"""The front of the package: a device and the kernels loaded on it, for as long as models run there. What a model does is
executor/model's business."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Self

from executor.bundle.bundle import Bundle
from executor.device import open_device
from executor.modules import Modules
from executor.profile import GpuProfile

if TYPE_CHECKING:
    from executor.model.generation import LanguageModel, Progress


class CudaExecutor:
    """One device with its loaded kernels, which all models on it share. Close it, or use it in a `with`.

    device: as in `open_device`: "auto", "cuda", "cuda:N" or "emulator". bundle: a folder that `ptxgen bundle` wrote; every
    kernel then comes from there and none is written. sanitize: check every access (emulator only).
    profile: which kernels are used (default: the environment's). Raises DeviceError if the
    device is not there, BundleError for a folder that is no bundle or was written for another GPU.
    """

    def __init__(
        self,
        device: str = "auto",
        *,
        bundle: str | Path | None = None,
        sanitize: bool = False,
        profile: GpuProfile | None = None,
    ) -> None:
        self.profile = profile or GpuProfile.from_environment()
        opened = None if bundle is None else Bundle.open(bundle)
        self.device = open_device(device, sanitize=sanitize)
        try:
            self.modules = Modules(self.device, bundle=opened)
        except BaseException:
            self.device.close()
            raise

    def load_model(self, path: str | Path, *, context: int | None = None, progress: Progress | None = None) -> LanguageModel:
        """A GGUF model, ready to decode; see LanguageModel.load."""
        from executor.model.generation import LanguageModel

        return LanguageModel.load(
            path, self.device, context=context, progress=progress, modules=self.modules, profile=self.profile
        )

    def close(self) -> None:
        """Free all that is on the device, models included. A second time does nothing."""
        self.device.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
