"""Text to ids and back: the recorded ids of a real model, the laws of round trips, and vocabularies that cannot be."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.base.errors import ModelError
from executor.gguf.directory import Value
from executor.gguf.gguf_file import GgufFile
from executor.text.tokenizer import Tokenizer
from executor.text.vocabulary import REQUIRED
from ptxgen.errors import ArgumentError
from tests.cli.invoke import invoke, refused
from tests.executor.text.vocabularies import altered, synthetic
from tests.real_models import LLAMA_CPP_IDS, PROMPT, PROMPT_IDS, smollm2_path
from tests.synthetic import Q, byte_characters, write_model


def make(path: Path, tokenizer: str = "gpt2", **options: object) -> Tokenizer:
    options = {"layers": 1, "hidden": 32, "heads": 1, "kv_heads": 1, "ff": 32, "types": Q.F32} | options
    return Tokenizer.from_gguf(GgufFile.open(write_model(path, tokenizer=tokenizer, **options)))  # type: ignore[arg-type]


@cache
def smollm2() -> Tokenizer:
    return Tokenizer.from_gguf(GgufFile.open(smollm2_path()))


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        (PROMPT, PROMPT_IDS),
        ("Hello world! 123", (19556, 905, 17, 216, 33, 34, 35)),
        ("Caf\u00e9 d\u00e9j\u00e0 vu.", (51, 1939, 2756, 32564, 90, 16739, 386, 101, 30)),
        ("  multiple   spaces", (216, 2701, 256, 5600)),
        ("\n", (198,)),
        ("<|im_start|>user\n", (1, 4093, 198)),
        ("", ()),
    ],
)
def test_smollm2_ids_are_the_ones_others_recorded(text: str, ids: tuple[int, ...]) -> None:
    assert tuple(smollm2().encode(text)) == ids
    assert smollm2().decode(ids, skip_special=False) == text


def test_smollm2_decodes_and_knows_its_ends() -> None:
    tokenizer = smollm2()
    assert tokenizer.decode(LLAMA_CPP_IDS) == " Paris.\n\nThe United States has"
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocab_size) == (1, 2, 49152)
    assert {0, 2} <= tokenizer.eos_ids
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert tokenizer.chat_template is not None


def test_specials_are_plain_characters_unless_parsed() -> None:
    tokenizer = smollm2()
    plain = tokenizer.encode("<|im_end|>", parse_special=False)
    assert 2 not in plain
    assert tokenizer.decode(plain) == "<|im_end|>"
    assert tokenizer.decode([2, 504]) == "The"


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("smollm", "ab 123's\n\n x", ["ab", " ", "1", "2", "3", "'s", "\n\n", " x"]),
        ("qwen2", "I'VE 1234 --\n x", ["I", "'VE", " ", "1", "2", "3", "4", " --\n", " x"]),
        ("llama-bpe", "I've 1234 --\n x", ["I", "'ve", " ", "123", "4", " --\n", " x"]),
    ],
)
def test_pre_tokenizers_cut_words_as_their_models_do(pre: str, text: str, words: list[str], tmp_path: Path) -> None:
    character = byte_characters()
    spelt = ["".join(character[byte] for byte in word.encode()) for word in words]
    vocabulary = [*character.values(), *(word for word in dict.fromkeys(spelt) if len(word) > 1)]
    merges = [f"{word[:cut]} {word[cut]}" for word in dict.fromkeys(spelt) for cut in range(1, len(word))]
    vocabulary += [word[:cut] for word in dict.fromkeys(spelt) for cut in range(2, len(word)) if word[:cut] not in vocabulary]
    new: dict[str, object] = {"tokenizer.ggml.tokens": vocabulary, "tokenizer.ggml.merges": merges}
    new["tokenizer.ggml.token_type"] = [1] * len(vocabulary)
    more = {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.add_bos_token": False}
    tokenizer = make(tmp_path / "m.gguf", pre=pre, metadata=new | more)
    assert [tokenizer.decode([index]) for index in tokenizer.encode(text)] == words


def test_qwen2_composes_characters_first_and_others_do_not() -> None:
    decomposed = "e\u0301"
    assert synthetic("gpt2", "qwen2").encode(decomposed) == synthetic("gpt2", "qwen2").encode("\u00e9")
    assert synthetic("gpt2", "smollm").decode(synthetic("gpt2", "smollm").encode(decomposed)) == decomposed


def test_a_word_that_is_a_token_needs_no_merges_in_llama_bpe_only(tmp_path: Path) -> None:
    for pre, count in (("llama-bpe", 2), ("qwen2", 1 + len("filler"))):
        tokenizer = make(tmp_path / f"{pre}.gguf", pre=pre)
        ids = tokenizer.encode("filler7", add_special=False)
        assert tokenizer.decode(ids) == "filler7"
        assert len(ids) >= count - 1
    character_ids = synthetic("gpt2", "llama-bpe").encode("the", add_special=False)
    assert [synthetic("gpt2", "llama-bpe").decode([i]) for i in character_ids] == ["the"]


def test_bos_is_added_once() -> None:
    tokenizer = synthetic("gpt2", "llama-bpe")
    assert tokenizer.bos_id is not None
    assert tokenizer.encode("the")[0] == tokenizer.bos_id
    assert tokenizer.encode("<|begin|>the") == tokenizer.encode("the")
    assert tokenizer.encode("the", add_special=False) == tokenizer.encode("the")[1:]
    assert tokenizer.encode("") == [tokenizer.bos_id]
    assert tokenizer.bos_id not in synthetic("gpt2", "qwen2").encode("the")


def test_eos_is_added_if_the_file_says_so(tmp_path: Path) -> None:
    tokenizer = make(tmp_path / "m.gguf", metadata={"tokenizer.ggml.add_eos_token": True})
    assert tokenizer.encode("the")[-1] == tokenizer.eos_id


def test_sentencepiece_merges_by_score_and_falls_back_to_bytes() -> None:
    tokenizer = synthetic("llama")
    ids = tokenizer.encode("the \u00e9", add_special=False)
    pieces = [tokenizer.token_bytes(index) for index in ids]
    assert pieces == [b" the", b" ", b"\xc3", b"\xa9"]
    # " t" and then "he" have better scores than "th"; from "th" and "e" there would be no way to " the"
    assert tokenizer.token_bytes(tokenizer.encode("th", add_special=False)[0]) == b" t"
    assert tokenizer.decode(tokenizer.encode("the \u00e9")) == "the \u00e9"
    assert tokenizer.decode(ids) == " the \u00e9"


def test_sentencepiece_prefixes_a_space_at_the_start_and_after_a_special() -> None:
    tokenizer = synthetic("llama")
    assert tokenizer.decode(tokenizer.encode("a<|im_end|>b", add_special=False), skip_special=False) == " a<|im_end|> b"
    assert tokenizer.decode(tokenizer.encode("a", add_special=False, continues=True)) == "a"


def test_sentencepiece_takes_the_leftmost_of_equal_scores(tmp_path: Path) -> None:
    tokens = ["<unk>", "a", "aa", "\u2581", *(f"<0x{byte:02X}>" for byte in range(256))]
    metadata = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 1, 1, 1] + [6] * 256,
        "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.add_space_prefix": False,
    }
    tokenizer = make(tmp_path / "m.gguf", "llama", metadata=metadata)
    assert tokenizer.encode("aaa", add_special=False) == [2, 1]


USER_DEFINED = ["[INST]", "\u2581\u2581", "\u2581cat", "]x", "a\u2581b", "\n"]
NORMAL = ["\u2581", *"abctx[]", "\u2581a", "ca", "\u2581c", "ab", "\u2581ab"]
UNUSED = ["cat", "\u2581x"]
SENTENCEPIECE: list[tuple[str, list[int], list[int]]] = [
    ("[INST]", [6, 0], [0]),
    ("a[INST]b", [14, 0, 8], [7, 0, 8]),
    ("[INST] a", [6, 0, 14], [0, 14]),
    ("[INST]x", [6, 0, 11], [0, 11]),
    ("[]x[", [6, 12, 3, 12], [12, 3, 12]),
    ("cat", [2], [15, 10]),
    ("a cat", [14, 2], [7, 2]),
    ("acat", [14, 15, 10], [7, 15, 10]),
    ("  a", [1, 14], [1, 7]),
    ("a   b", [14, 1, 6, 8], [7, 1, 6, 8]),
    ("a b", [6, 4], [4]),
    ("ab b", [18, 6, 8], [17, 6, 8]),
    ("x\na", [6, 11, 5, 7], [11, 5, 7]),
    (" \u2581cat", [1, 2], [1, 15, 10]),
    ("ca t x", [6, 15, 6, 10, 6, 11], [15, 6, 10, 6, 11]),
]
"""Ids, less 259, that sentencepiece 0.2.3 gives with its dummy prefix and without."""


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("spaced", [True, False], ids=["spaces as converters write them", "as in the model"])
def test_user_defined_and_unused_tokens_are_found_as_sentencepiece_finds_them(prefix: bool, spaced: bool) -> None:
    user_defined = [text.replace("\u2581", " ") if spaced else text for text in USER_DEFINED]
    count = 259 + len(user_defined) + len(NORMAL) + len(UNUSED)
    made: dict[str, Value] = {
        "tokens": ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *user_defined, *NORMAL, *UNUSED],
        "token_type": np.asarray([2, 3, 3] + [6] * 256 + [4] * len(user_defined) + [1] * len(NORMAL) + [5] * len(UNUSED)),
        "scores": np.asarray([0.0] * 265 + [-float(at) for at in range(count - 265)]),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "add_space_prefix": prefix,
    }
    tokenizer = Tokenizer.from_gguf(altered("llama", made))
    for text, *ids in SENTENCEPIECE:
        encoded = tokenizer.encode(text, add_special=False)
        assert [index - 259 for index in encoded] == ids[0 if prefix else 1], text
        assert tokenizer.decode([1, *encoded] if prefix else encoded) == text.replace("\u2581", " ")


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@given(text=st.text(max_size=60))
def test_decoding_what_was_encoded_gives_the_text(kind: str, text: str) -> None:
    tokenizer = synthetic(kind, "smollm" if kind == "gpt2" else None)
    if kind == "llama":
        text = text.replace("\u2581", "")  # stands for a space in these vocabularies
    ids = tokenizer.encode(text, parse_special=False)
    assert tokenizer.decode(ids) == text
    assert all(0 <= index < tokenizer.vocab_size for index in ids)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@given(ids=st.lists(st.integers(0, 511), max_size=40))
def test_a_stream_gives_the_text_of_decode_in_whole_characters(kind: str, ids: list[int]) -> None:
    tokenizer = synthetic(kind)
    stream = tokenizer.stream()
    parts = [stream.push(index) for index in ids]
    assert "".join(parts) + stream.finish() == tokenizer.decode(ids)


def test_a_stream_holds_half_a_character_back() -> None:
    tokenizer = smollm2()
    ids = tokenizer.encode("\u2603")
    stream = tokenizer.stream()
    parts = [stream.push(index) for index in ids]
    assert len(ids) > 1
    assert parts == [""] * (len(ids) - 1) + ["\u2603"]
    stream.push(ids[0])
    assert stream.finish() == "\ufffd"


def test_bytes_without_a_token_are_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert smollm2().encode("a\x04b") == smollm2().encode("a") + smollm2().encode("b")
    assert "0x04" in caplog.text


def test_ids_and_texts_that_are_out_of_range() -> None:
    tokenizer = synthetic("gpt2")
    for index in (-1, 512):
        with pytest.raises(ArgumentError, match=rf"token id {index} is out of range; the vocabulary has ids 0 to 511"):
            tokenizer.decode([index])
    with pytest.raises(ArgumentError, match="not Unicode"):
        tokenizer.encode("\ud800")


@pytest.mark.parametrize(
    "ids", ["12", ["1"], [1.0], [True], [None], 5, np.asarray([0.5]), np.zeros((1, 2), int), [[1]]], ids=str
)
def test_what_is_no_token_id_is_not_decoded(ids: Any) -> None:
    with pytest.raises(ArgumentError, match=r"allowed: (a whole number|token ids|one row of token ids)"):
        synthetic("gpt2").decode(ids)


def test_numpy_integers_are_token_ids() -> None:
    tokenizer = synthetic("gpt2")
    given: Any
    for given in (np.asarray([65, 66], np.uint16), iter([np.int64(65), 66]), range(65, 67)):
        assert tokenizer.decode(given) == tokenizer.decode([65, 66])


def test_a_model_without_a_vocabulary_takes_only_ids(tmp_path: Path) -> None:
    tokenizer = make(tmp_path / "m.gguf", "none", metadata={"tokenizer.ggml.eos_token_id": 7})
    assert (tokenizer.vocab_size, tokenizer.eos_ids, tokenizer.bos_token) == (512, frozenset({7}), "")
    for use in (lambda: tokenizer.encode("a"), lambda: tokenizer.decode([1]), tokenizer.stream):
        with pytest.raises(ModelError, match="no vocabulary"):
            use()


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"model": "rwkv"}, r"tokenizer\.ggml\.model is 'rwkv' \(the longest token .*known vocabularies: gpt2, gemma4, .*none"),
        ({"model": "what"}, r"tokenizer\.ggml\.model is 'what', which is not supported; known vocabularies: gpt2"),
        ({"pre": "new"}, r"tokenizer\.ggml\.pre is 'new', which is not supported; known pre-tokenizers: default, llama3"),
    ],
)
def test_a_tokenizer_that_is_not_supported_takes_ids_and_refuses_text_by_name(metadata: dict[str, Value], message: str) -> None:
    tokenizer = Tokenizer.from_gguf(altered("gpt2", metadata))
    assert (tokenizer.vocab_size, tokenizer.eos_ids, tokenizer.has_text) == (512, frozenset({510}), False)
    for use in (lambda: tokenizer.encode("a"), lambda: tokenizer.decode([1]), tokenizer.stream):
        with pytest.raises(ModelError, match=f"{message}.*use token ids"):
            use()


@pytest.mark.slow
def test_a_model_runs_on_token_ids_whatever_its_tokenizer(tmp_path: Path) -> None:
    sizes = {"layers": 1, "hidden": 32, "heads": 1, "kv_heads": 1, "ff": 32, "types": Q.F32}
    model = write_model(tmp_path / "m.gguf", pre="new", **sizes)
    assert invoke("ptxrun", "logits", model, "--tokens", "5,6", "-o", tmp_path / "l.npz", "--device", "emulator").exit_code == 0
    said = refused("ptxrun", "generate", model, "-p", "the", "--device", "emulator")
    assert "tokenizer.ggml.pre is 'new', which is not supported" in said


def test_a_file_that_says_nothing_of_its_tokens_takes_ids() -> None:
    file = altered("gpt2", {})
    file.metadata = {key: value for key, value in file.metadata.items() if not key.startswith("tokenizer.")}
    assert Tokenizer.from_gguf(file).vocab_size == 512
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.model is missing"):
        Tokenizer.from_gguf(file).encode("a")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"pre": 3}, "pre is 3; it must be a string"),
        ({"tokens": ["a"]}, "token_type has 512 elements and there are 1 tokens"),
        ({"tokens": np.zeros(3, np.int32)}, "tokens must be an array of strings"),
        ({"tokens": []}, "tokens holds no tokens"),
        ({"token_type": np.full(512, 9, np.int32)}, "token_type holds 9; allowed: 1 NORMAL"),
        ({"scores": np.full(512, np.nan, np.float32)}, "scores holds a value that is not finite"),
        ({"scores": [0.0] * 512}, "scores must be an array of numbers"),
        ({"bos_token_id": 512}, "bos_token_id is 512; allowed: 0 to 511"),
        ({"eos_token_id": -1}, "eos_token_id is -1"),
        ({"merges": ["ab"]}, "merges holds 'ab' at 0"),
        ({"merges": ["a \u20ac"]}, "merges holds 'a \u20ac' at 0"),
        ({"add_bos_token": 1}, "add_bos_token is 1; it must be a bool"),
    ],
)
def test_vocabularies_that_cannot_be(metadata: dict[str, Value], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Tokenizer.from_gguf(altered("gpt2", metadata))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"scores": np.zeros(3, np.float32)}, "scores has 3 elements"),
        ({"scores": np.zeros(0, np.float32)}, "scores has 0 elements"),
        ({"token_type": np.full(512, 6, np.int32)}, "byte token '<unk>' at 0; allowed: <0x00>"),
    ],
)
def test_llama_vocabularies_that_cannot_be(metadata: dict[str, Value], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Tokenizer.from_gguf(altered("llama", metadata))


def test_a_vocabulary_without_bytes_gives_its_unknown_token() -> None:
    kinds = np.asarray([2] + [5] * 256 + [1] * 255, np.int32)
    tokenizer = Tokenizer.from_gguf(altered("llama", {"token_type": kinds}))
    assert tokenizer.encode("\u00e9", add_special=False)[1:] == [0, 0]


@pytest.mark.parametrize(("model", "key"), [(model, key) for model, keys in REQUIRED.items() for key in keys])
def test_an_array_that_is_missing_is_named(model: str, key: str) -> None:
    file = altered(model, {})
    file.metadata = {name: value for name, value in file.metadata.items() if name != f"tokenizer.ggml.{key}"}
    with pytest.raises(ModelError, match=rf"tokenizer\.ggml\.{key} is missing; a {model} vocabulary needs it"):
        Tokenizer.from_gguf(file)
