"""What is timed of persistent_layer can be tried on the emulator, whose times mean nothing."""

from __future__ import annotations

from benchmarks.persistent_layer import SHAPES, layer, layers, settings, times
from executor.choice.persistent import PersistentGrid
from executor.device import open_device
from executor.launch.launch import Launcher
from executor.launch.modules import Modules
from ptxgen.target import Target


def test_every_setting_is_one_that_the_gpu_holds_and_none_comes_twice() -> None:
    grid = PersistentGrid(132, Target(90))
    for shape in SHAPES.values():
        made = list(settings(layer(shape, "Q4_K", "Q6_K", 3), grid))
        assert len(made) == len(set(made)) > 2
        assert all(kernel.runs_on(grid.target) and kernel.blocks == grid.blocks for kernel in made)


def test_a_layer_is_timed_with_and_without_an_early_start() -> None:
    with open_device("emulator", sanitize=True) as device:
        launcher, kernel = Launcher(device, Modules(device)), layer((256, 256, 64, 512), "Q4_K", "Q6_K", 1)
        made = next(settings(kernel, PersistentGrid.of(device.target, 0)))
        with layers(device, made) as given:
            for dependent in (False, True):
                (seconds,) = times(launcher, made, given, 1, dependent=dependent)
                assert seconds > 0
