"""The benchmark of starts: its vocabulary is one that models have, and its stages add up to the whole."""

from __future__ import annotations

import time
from pathlib import Path

import gguf
import pytest

from benchmarks.load import STAGES, child
from benchmarks.vocabulary import SPECIAL, add_vocabulary
from executor.gguf.gguf_file import GgufFile
from executor.text.tokenizer import Tokenizer
from tests.synthetic import Q, write_model


def test_the_synthetic_vocabulary_has_the_size_asked_for_and_its_merges_work(tmp_path: Path) -> None:
    size = 16384
    writer = gguf.GGUFWriter(tmp_path / "v.gguf", "llama")
    add_vocabulary(writer, size)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with GgufFile.open(tmp_path / "v.gguf") as file:
        tokenizer = Tokenizer.from_gguf(file)
    assert tokenizer.vocab_size == size
    ids = tokenizer.encode("abc xyz")
    assert ids[0] == tokenizer.bos_id == size - SPECIAL
    assert tokenizer.decode(ids) == "abc xyz"
    assert len(ids) < 1 + len("abc xyz")


def test_the_stages_of_a_start_add_up(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", types=Q.Q8_0, layers=1, hidden=256, heads=4, ff=256, context=32)
    began = time.time()
    found = child(began, str(path), "emulator")
    seconds = found["seconds"]
    assert sum(seconds[stage] for stage in STAGES) == pytest.approx(seconds["total"], abs=1e-3)
    assert 0 <= seconds["besides_upload"] <= seconds["total"] <= time.time() - began
    with GgufFile.open(path) as file:
        assert found["weight_bytes"] == sum(info.nbytes for info in file.tensors.values())
