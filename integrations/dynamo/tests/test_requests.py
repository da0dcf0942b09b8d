"""Requests of Dynamo's frontend as options of the scheduler, and the interface of the engine, without a deployment."""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dynamo.common.backend import LLMEngine
from ptxgen_dynamo.engine import PtxgenEngine
from ptxgen_dynamo.prefixes import PrefixEvents
from ptxgen_dynamo.requests import asked
from ptxgen_dynamo.settings import parsed

from executor.base.errors import ModelError
from executor.gguf.gguf_file import GgufFile
from executor.memory.page_pool import PagePool, PageTable
from executor.text.tokenizer import Tokenizer
from ptxgen.errors import ArgumentError

PLAIN = {
    "model": "tiny", "token_ids": [1, 2, 3], "eos_token_ids": [510], "mdc_sum": "0", "annotations": [], "routing": {},
    "router_config_override": None,
    "stop_conditions": {"max_tokens": 8, "stop": None, "stop_token_ids": [7], "stop_token_ids_hidden": [510],
                        "min_tokens": None, "ignore_eos": None, "max_thinking_tokens": None},
    "sampling_options": {"n": 1, "best_of": None, "presence_penalty": None, "temperature": None, "top_p": None, "top_k": None,
                         "use_beam_search": None, "seed": None, "guided_decoding": None},
    "output_options": {"logprobs": None, "prompt_logprobs": None, "skip_special_tokens": None},
}  # fmt: skip
"""As a frontend of 1.6.0 sends it."""


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Tokenizer:
    return Tokenizer.from_gguf(GgufFile.open(model))


def changed(group: str, **fields: Any) -> dict[str, Any]:
    whole: dict[str, Any] = dict(PLAIN)
    return whole | {group: whole.get(group, {}) | fields}


def test_a_plain_request_has_openais_settings_and_the_models_ends(tokenizer: Tokenizer) -> None:
    wanted = asked(PLAIN, tokenizer, 512)
    assert wanted.prompt == [1, 2, 3]
    sampler = wanted.options.pop("sampler")
    assert (sampler.temperature, sampler.top_k) == (1.0, 0)
    assert wanted.options == {
        "max_tokens": 8, "seed": None, "stop": (), "stop_tokens": (7, *sorted({510} | tokenizer.eos_ids)), "grammar": None,
        "logprobs": None,
    }  # fmt: skip


def test_settings_are_taken_over(tokenizer: Tokenizer) -> None:
    settings = {"temperature": 0.5, "top_p": 0.9, "min_p": 0.1, "presence_penalty": 0.2, "frequency_penalty": 0.3}
    options = asked(changed("sampling_options", **settings, repetition_penalty=1.1, top_k=5, seed=-1), tokenizer, 512).options
    sampler = options["sampler"]
    assert {name: getattr(sampler, name) for name in ("temperature", "top_p", "min_p", "top_k")} == {
        "temperature": 0.5, "top_p": 0.9, "min_p": 0.1, "top_k": 5,
    }  # fmt: skip
    assert sampler.adjustments != asked(PLAIN, tokenizer, 512).options["sampler"].adjustments
    assert options["seed"] == 2**64 - 1
    assert asked(changed("sampling_options", top_k=-1), tokenizer, 512).options["sampler"].top_k == 0
    ended = asked(changed("stop_conditions", max_tokens=None, ignore_eos=True, stop_token_ids_hidden=None), tokenizer, 512)
    assert (ended.options["max_tokens"], ended.options["stop_tokens"]) == (510, (7,))
    assert asked(changed("output_options", logprobs=3), tokenizer, 512).options["logprobs"] == 3


@pytest.mark.parametrize(
    ("guided", "rules"),
    [({"json": {"enum": ["yes"]}}, "enum"), ({"regex": "a+", "json": None}, "a+"), ({"choice": ['a"b']}, 'a\\"b')],
)
def test_what_an_answer_must_be_becomes_a_grammar(tokenizer: Tokenizer, guided: dict[str, Any], rules: str) -> None:
    grammar = asked(changed("sampling_options", guided_decoding=guided), tokenizer, 512).options["grammar"]
    assert rules in grammar.rules.replace("\\\\", "\\")


@pytest.mark.parametrize(
    ("group", "fields", "message"),
    [
        ("sampling_options", {"n": 2}, "n is 2; allowed with this worker: 1"),
        ("sampling_options", {"use_beam_search": True}, "use_beam_search of sampling_options is not supported"),
        ("sampling_options", {"new_thing": 0.5}, "new_thing of sampling_options is not supported by this worker .it is 0.5"),
        ("sampling_options", {"temperature": math.nan}, "temperature"),
        ("sampling_options", {"guided_decoding": {"grammar": "root ::= x"}}, "grammar of guided_decoding is not supported"),
        ("sampling_options", {"guided_decoding": {"json": {}, "regex": "a", "choice": ["b"]}}, "has choice, regex; allowed"),
        ("stop_conditions", {"min_tokens": 1}, "min_tokens of stop_conditions is not supported"),
        ("stop_conditions", {"max_tokens": 511}, "the prompt has 3 tokens and the answer may have 511; .* 510 for the answer"),
        ("stop_conditions", {"max_tokens": 0}, "max_tokens is 0; allowed: whole numbers from 1 to 510"),
        ("output_options", {"prompt_logprobs": 1}, "prompt_logprobs of output_options is not supported"),
        ("output_options", {"logprobs": 21}, "logprobs is 21; allowed: whole numbers from 0 to 20"),
        ("routing", {"lora_name": "x"}, "lora_name of routing is not supported"),
        ("extra_args", {"nvext": {"cache_salt": "x"}}, "extra_args of the request is not supported"),
        ("multi_modal_data", {"image": "x"}, "multi_modal_data of the request is not supported"),
    ],
)  # fmt: skip
def test_what_would_change_the_answer_and_is_not_known_is_refused_by_name(
    tokenizer: Tokenizer, group: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        asked(changed(group, **fields), tokenizer, 512)


def test_a_prompt_that_is_too_long_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(ArgumentError, match="the prompt has 600 tokens; allowed: up to 512"):
        asked(PLAIN | {"token_ids": [1] * 600}, tokenizer, 512)


def test_the_engine_overrides_methods_of_dynamos_interface_with_their_parameters() -> None:
    """A method that a new version renames would never be called; one with other parameters would fail only when it is."""
    own = {name for name in vars(PtxgenEngine) if not name.startswith("_")}
    assert own == {
        "from_args", "start", "generate", "abort", "cleanup", "kv_event_sources", "component_metrics_dp_ranks",
        "attach_snapshot_publisher", "register_prometheus", "health_check_payload",
    }  # fmt: skip
    for name in own:
        theirs, ours = (inspect.signature(getattr(kind, name)) for kind in (LLMEngine, PtxgenEngine))
        assert list(theirs.parameters) == list(ours.parameters), name
    assert not inspect.isabstract(PtxgenEngine)


def test_an_engine_that_never_started_ends_and_a_second_end_does_nothing(model: Path, tmp_path: Path) -> None:
    async def ended() -> None:
        engine = PtxgenEngine(parsed([str(model)]), tmp_path)
        await engine.cleanup()
        await engine.cleanup()

    asyncio.run(ended())


def test_what_cannot_start_says_why_in_a_line_and_exits_with_2(model: Path, kernels: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none\.gguf: there is no such file"):
        asyncio.run(PtxgenEngine.from_args([str(tmp_path / "none.gguf")]))
    words = [str(model), "--cache-tokens", "32", "--device", "emulator", "--discovery-backend", "file"]
    done = subprocess.run(
        [sys.executable, "-m", "ptxgen_dynamo", *words],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"DYN_FILE_KV": str(tmp_path), "PTXGEN_CACHE_DIR": str(kernels)},
    )
    why = "ptxgen-dynamo: --cache-tokens 32 is less than the context of one answer, 512 tokens"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, why)


class Published:
    """Keeps what a router would know: the text up to the end of each block."""

    def __init__(self) -> None:
        self.texts: dict[int, list[int]] = {}
        self.fails = False

    def publish_stored(
        self, token_ids: list[int], num_block_tokens: list[int], block_hashes: list[int], parent_hash: int | None = None
    ) -> None:
        if self.fails:
            raise ConnectionError("no router")
        assert num_block_tokens == [len(token_ids)]
        (block,) = block_hashes
        assert block not in self.texts
        self.texts[block] = ([] if parent_hash is None else self.texts[parent_hash]) + token_ids

    def publish_removed(self, block_hashes: list[int]) -> None:
        for block in block_hashes:
            del self.texts[block]


def computed(pool: PagePool, tokens: list[int]) -> None:
    table = PageTable(pool)
    table.adopt(tokens, len(tokens))
    table.reserve(len(tokens))
    table.publish(tokens, len(tokens))
    table.release()


def test_the_router_knows_the_beginnings_that_the_cache_has() -> None:
    published, pool = Published(), PagePool(4, 2)
    pool.observer = PrefixEvents(published)
    computed(pool, [1, 2, 3, 4, 5])
    assert list(published.texts.values()) == [[1, 2], [1, 2, 3, 4]]
    computed(pool, [1, 2, 7, 8])
    computed(pool, [9, 9, 9, 9])  # takes the pages that were idle longest: the ends of the first text and of the second
    assert [1, 2, 3, 4] not in published.texts.values()
    assert [9, 9, 9, 9] in published.texts.values()
    pool.forget()
    assert published.texts == {}


def test_a_router_that_is_gone_harms_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    published, pool = Published(), PagePool(4, 2)
    published.fails = True
    pool.observer = PrefixEvents(published)
    computed(pool, [1, 2, 3, 4])
    assert "a prefix cannot be announced" in caplog.text
