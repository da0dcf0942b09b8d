"""The models that run, by family: for a file that does not, the nearest of its family and size. Data, and one look-up."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from executor.gguf.gguf_file import GgufFile

BILLION: Final = {"M": 1e-3, "B": 1.0}


@dataclass(frozen=True)
class Family:
    """Models that run, of one architecture. Each name ends with its size, in millions (M) or billions (B) of parameters."""

    architecture: str
    names: tuple[str, ...]

    @classmethod
    def of(cls, architecture: str, title: str, *sizes: str) -> Family:
        """Models whose names are one title with a size each."""
        return cls(architecture, tuple(f"{title} {size}" for size in sizes))

    def nearest(self, billions: float) -> str:
        """The one whose size has the least ratio to this one."""
        return min(self.names, key=lambda name: abs(math.log(size_of(name) / billions)))


QWEN3: Final = Family.of("qwen3", "Qwen3", "0.6B", "1.7B", "4B", "8B", "14B", "32B")
LLAMA: Final = Family("llama", ("Llama 3.2 1B", "Llama 3.2 3B", "Llama 3.1 8B", "Llama 3.3 70B"))
MISTRAL: Final = Family("llama", ("Mistral 7B", "Mistral Nemo 12B", "Mistral Small 24B"))
MINISTRAL: Final = Family("mistral3", ("Ministral 3 3B", "Ministral 3 8B", "Ministral 3 14B", "Mistral Small 3.2 24B"))
FAMILIES: Final[Mapping[str, Family]] = {
    r".*bert|t5|gemma-embedding": Family.of("qwen3", "Qwen3 Embedding", "0.6B", "4B", "8B"),
    r"qwen[23]?vl": Family.of("qwen3vl", "Qwen3-VL", "2B", "4B", "8B", "32B"),
    r"qwen": QWEN3,
    r"gemma": Family.of("gemma3", "Gemma 3", "270M", "1B", "4B", "12B", "27B"),
    r"llama4": LLAMA,
    r"llama": MISTRAL,
    r"mistral|pixtral": MINISTRAL,
    r"deepseek": Family.of("qwen2", "DeepSeek-R1-Distill-Qwen", "1.5B", "7B", "14B", "32B"),
    r"phi": Family("phi3", ("Phi-4-mini 3.8B", "Phi-4 14B")),
    r"granite": Family.of("granite", "Granite 3.3", "2B", "8B"),
    r"olmo": Family.of("olmo2", "OLMo 2", "1B", "7B", "13B", "32B"),
    r"(chat)?glm": Family.of("glm4", "GLM-4-0414", "9B", "32B"),
    r"command|cohere": Family("cohere2", ("Command R7B 7B", "Command A 111B")),
    r"ernie": Family.of("ernie4_5", "ERNIE 4.5", "0.3B"),
    r"exaone": Family.of("exaone4", "EXAONE 4.0", "1.2B", "32B"),
    r"nemotron": Family.of("nemotron", "Minitron", "4B", "8B"),
    r"hunyuan": Family.of("hunyuan-dense", "Hunyuan", "0.5B", "1.8B", "4B", "7B"),
    r"minicpm": Family.of("minicpm", "MiniCPM4", "0.5B", "8B"),
    r"falcon": Family.of("llama", "Falcon3", "1B", "3B", "7B", "10B"),
    r"baichuan": Family.of("baichuan", "Baichuan2", "7B", "13B"),
    r"starcoder|codeshell|refact": Family.of("starcoder2", "StarCoder2", "3B", "7B", "15B"),
}
"""By the start of `general.architecture`, a pattern; the first that fits counts."""


def what_runs(file: GgufFile, architecture: str) -> str:
    """The nearest model of the family and size of a file, in words; of a family without a row, one of its size."""
    billions = max(sum(math.prod(info.shape) for info in file.tensors.values()), 1) / 1e9
    family = next((own for pattern, own in FAMILIES.items() if re.match(pattern, architecture)), None)
    if family is None:
        return f"of about its size runs: {QWEN3.nearest(billions)}"
    return f"nearest that runs: {family.nearest(billions)}"


def size_of(name: str) -> float:
    """Billions of parameters, by the end of a name."""
    size = name.rpartition(" ")[2]
    return float(size[:-1]) * BILLION[size[-1]]
