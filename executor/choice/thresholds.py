"""The thresholds that were measured, each with its evidence: what was timed, on which GPUs, with which result. Nothing outside
this room holds a number that another GPU would change, but for settings of kernels (their `suited`)."""

from __future__ import annotations

from typing import Final, NamedTuple

TILE_RUN: Final = 32
"""Rows of one sequence in a step from which they attend in tiles on tensor cores."""

MOST_SENDING: Final = 2
"""Devices that send int8 planes to the GEMVs that read them. More need more registers than there are."""

TURN: Final = 8
"""Steps of the same sequences one after another. The longer a turn, the longer other sequences wait; between turns the GPU
idles while the host reads results."""

RATE: Final = 1.5e12
"""Bytes of weights a second that a launch for up to 8 rows reads where nothing was measured. On a GPU without a table only the
number of such launches counts."""

BESIDE: Final = 2e-6
"""Seconds, for each product of a step, of all that is not a product: norms, attention, starts of launches."""

READ_SHARE: Final = 0.86
"""Of the memory bandwidth of a GPU's data sheet, what products of one sequence's token reach."""

LAYER: Final = 12.5e-6
"""Seconds of a layer of such a token in which the memory idles: starts of launches, norms, reductions."""


class Evidence(NamedTuple):
    """decides: a threshold above, a rule, or a function with a fixed answer; gpu: on which it was timed; found: the figures."""

    decides: str
    gpu: str
    found: str


EVIDENCE: Final = (
    Evidence("TILE_RUN", "H200", "predicted faster from 32 rows on, at any depth (benchmarks/LOG.md)"),
    Evidence("MOST_SENDING", "2 H100", "8B: 1472 us a token gathered, 1423 sent (tried/sent-digits-two-gpus.json)"),
    Evidence("MOST_SENDING", "none", "down of the 8B on 4 and 8 devices: the assembler spills 88 and 220 bytes"),
    Evidence("TURN", "H200", "the GPU idles about 80 us between two turns"),
    Evidence("RATE", "H200", "what launches for up to 8 rows reach"),
    Evidence("BESIDE", "H200", "8B: 406 us of a step beside 225 products (step-parts-8b-h200.json)"),
    Evidence("READ_SHARE", "H200, H100", "with LAYER within 11 % of six models on each (one-sequence-{h200,h100}.json)"),
    Evidence("LAYER", "H200", "with READ_SHARE 89 tokens/s for the 70B, measured 79 (several-llama-3.1-70b-two-h200.json)"),
    Evidence("weight_pipelines", "2 H100", "sent planes win with pipelines only, so sent_parts needs this rule"),
    Evidence("persistent_layers", "H200", "8B: a layer takes 55.9 us, launches are faster (persistent-layer-8b-h200.json)"),
    Evidence("executor.choice.persistent.FITTING", "H200", "8B: 16 warps of 4 rows 55.9 us, 8 warps and 8 stages 65.2"),
    Evidence("deferred_norms", "H100", "8B: completed by the head 8 us, by a launch 1.5: one GPU launches the head's norm"),
    Evidence(
        "executor.device.gather_choice.choose", "2 H200", "peer kernels and NCCL: 4 KiB 2.9 and 6.8 us, 64 MiB 246 and 290"
    ),
    Evidence("executor.device.pinned.Fetches", "H200", "a fetch in a stream of its own: 2.5 us between steps instead of 10"),
)
