"""Text to token ids and back. Which algorithm a GGUF file asks for, and the algorithms: encoders.py."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from functools import cached_property
from typing import Final

from executor.base.arguments import token, tokens
from executor.base.errors import ModelError
from executor.gguf.gguf_file import GgufFile
from executor.text.chat_templates import ChatTemplates
from executor.text.clean_spaces import cleaned
from executor.text.encoders import Chosen, Encoder, chosen
from executor.text.special_tokens import Span, SpecialTokens, stripped
from executor.text.token_kinds import SILENT
from executor.text.vocabulary import Vocabulary, VocabularyKeys
from ptxgen.errors import ArgumentError

REPLACEMENT: Final = "\ufffd"
"""Stands for bytes that are not UTF-8."""


class Tokenizer:
    """The tokenizer of one model. Ids are whole numbers in [0, vocab_size).

    bos_id, eos_id, sep_id: None if the file has none. eos_ids: every id that ends a generation (end of text, of turn, of
    message). add_bos, add_eos, add_sep: what `encode` adds. clean_spaces: whether the model's own tokenizer cleans the spaces
    of a decoded text, which `decode` does if asked. chat_templates: the file's Jinja2 templates. A file without a vocabulary,
    or with one that is not supported, gives a tokenizer that knows vocab_size and eos_ids, and raises ModelError for text.
    """

    def __init__(self, file: GgufFile, vocabulary: Vocabulary | None, choice: Chosen, vocab_size: int) -> None:
        keys = VocabularyKeys(file)
        encoder = choice.encoder
        self.path = file.path
        self.vocab_size = vocab_size
        self.bos_id = vocabulary.bos_id if vocabulary else keys.token_id("bos_token_id", vocab_size)
        self.eos_id = vocabulary.eos_id if vocabulary else keys.token_id("eos_token_id", vocab_size)
        self.sep_id = vocabulary.sep_id if vocabulary else None
        self.eos_ids = vocabulary.end_ids if vocabulary else frozenset(() if self.eos_id is None else (self.eos_id,))
        self.chat_templates = vocabulary.templates if vocabulary else ChatTemplates.from_gguf(file)
        self.add_bos = choice.force_bos or keys.flag("add_bos_token", choice.add_bos)
        self.add_eos = keys.flag("add_eos_token", choice.add_eos)
        self.add_sep = choice.separates and keys.flag("add_sep_token", False)
        self.clean_spaces = choice.clean_spaces
        self._vocabulary = vocabulary
        self._encoder = encoder
        self._no_text = choice.refusal
        self._stripping = vocabulary.stripping(file) if vocabulary and encoder else (frozenset[int](), frozenset[int]())
        added = (self.add_bos, "bos", self.bos_id), (self.add_eos, "eos", self.eos_id), (self.add_sep, "seperator", self.sep_id)
        for wanted, key, index in added:
            if wanted and index is None and encoder is not None:
                keys.fail(f"{key}_token_id", f"is missing, and the file wants {key.upper()} added to every text")

    @classmethod
    def from_gguf(cls, file: GgufFile) -> Tokenizer:
        """The tokenizer that the file's metadata describes. ModelError names the key that is wrong and the allowed values. A
        vocabulary that is not supported is no error before text is encoded or decoded: ids work without."""
        choice = chosen(file)
        if choice.vocabulary is None:
            return cls(file, None, choice, _stated_size(file))
        return cls(file, choice.vocabulary, choice, len(choice.vocabulary.tokens))

    @property
    def bos_token(self) -> str:
        """The text of BOS, as chat templates want it; empty if there is none."""
        return self._text(self.bos_id)

    @property
    def eos_token(self) -> str:
        """The text of EOS, as chat templates want it; empty if there is none."""
        return self._text(self.eos_id)

    @property
    def chat_template(self) -> str | None:
        """The file's default chat template, or None."""
        return self.chat_templates.default

    @property
    def has_text(self) -> bool:
        """Whether the file has a vocabulary, so that text can be encoded and decoded."""
        return self._vocabulary is not None and self._encoder is not None

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True, continues: bool = False) -> list[int]:
        """Ids of a text.

        add_special: put BOS and EOS around it if the model wants them; a text that already starts with BOS gets no second one.
        parse_special: control tokens written in the text become their ids; if not, they are ordinary characters, and the ids
        hold no control token but those of add_special. continues: it goes on with another one, so it does not get the space
        that some vocabularies put before a text.
        """
        return self.encode_spans([Span(text, trusted=parse_special)], add_special=add_special, continues=continues)

    def encode_spans(self, spans: Iterable[Span], *, add_special: bool = True, continues: bool = False) -> list[int]:
        """Ids of the text that the spans are together. A control token counts where all of it stands in trusted spans; the
        words around it are encoded as if the spans were one text. executor/text/chat.py makes such spans."""
        _, encoder = self.parts()
        spans = list(spans)
        for span in spans:
            try:
                span.text.encode()
            except UnicodeEncodeError as error:
                raise ArgumentError(f"the text is not Unicode: {error.reason} at character {error.start}") from None
        out: list[int] = []
        after_special = not continues
        for fragment, index in stripped(self._special_tokens.cut(spans), *self._stripping):
            if index is None:
                prefix = " " if after_special and encoder.adds_space_prefix else ""
                out += encoder.encode(prefix + fragment)
            else:
                out.append(index)
            after_special = index is not None
        if add_special and self.add_bos and self.bos_id is not None and out[:1] != [self.bos_id]:
            out.insert(0, self.bos_id)
        if add_special and self.add_eos and self.eos_id is not None:
            out.append(self.eos_id)
        if add_special and self.add_sep and self.sep_id is not None:
            out.append(self.sep_id)
        return out

    def decode(self, ids: Iterable[int], skip_special: bool = True, *, clean_spaces: bool = False) -> str:
        """The text of some ids, whole numbers or a NumPy vector of them; bytes that are not UTF-8 become U+FFFD.
        ArgumentError for what is no id of a token.

        A leading BOS marks the start of a text, so the space that encode put there is taken away; a continuation keeps it.
        clean_spaces: if the model's own tokenizer does (`Tokenizer.clean_spaces`), remove the space before some punctuation, as
        llama.cpp does with whole texts. What was encoded does not come back then.
        """
        pieces = self.stream(skip_special)
        text = "".join([pieces.push(index) for index in tokens("ids", ids, self.vocab_size)]) + pieces.finish()
        return cleaned(text) if clean_spaces and self.clean_spaces else text

    def stream(self, skip_special: bool = True) -> TextStream:
        """A decoder for ids that arrive one by one."""
        self.parts()
        return TextStream(self, skip_special)

    def token_bytes(self, index: int, skip_special: bool = True) -> bytes:
        """The bytes of one token; none for a control token unless asked for."""
        vocabulary, encoder = self.parts()
        index = token("the token id", index, self.vocab_size)
        return b"" if skip_special and vocabulary.kinds[index] in SILENT else encoder.piece(index)

    def adds_space_after(self, index: int) -> bool:
        """Whether text after this id got a space that is not the writer's: only so after BOS, in some vocabularies."""
        return self._encoder is not None and self._encoder.adds_space_prefix and index == self.bos_id

    def parts(self) -> tuple[Vocabulary, Encoder]:
        """The vocabulary and its algorithm. ModelError where there is none."""
        if self._vocabulary is None or self._encoder is None:
            raise ModelError(f"{self._no_text}, so text cannot be encoded or decoded; use token ids", self.path)
        return self._vocabulary, self._encoder

    @cached_property
    def _special_tokens(self) -> SpecialTokens:
        vocabulary, encoder = self.parts()
        return vocabulary.special_tokens(user_defined=not encoder.finds_user_defined)

    def _text(self, index: int | None) -> str:
        return self._vocabulary.tokens[index] if self._vocabulary and index is not None else ""


class TextStream:
    """Text as ids arrive: what `push` returns is whole characters, and bytes of an unfinished one wait for the next id."""

    def __init__(self, tokenizer: Tokenizer, skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._count = 0
        self._length = 0
        self._drop_space = False
        self.start = 0
        """Where the last id begins in the text, in characters: inside a character, where that begins."""

    def push(self, index: int) -> str:
        """The text that this id completes, maybe none."""
        piece = self._tokenizer.token_bytes(index, self._skip_special)
        if self._drop_space and piece.startswith(b" "):
            piece = piece[1:]
        self._drop_space = self._count == 0 and self._tokenizer.adds_space_after(index)
        self._count += 1
        unfinished = self._decoder.getstate()[0]
        text = self._decoder.decode(piece)
        # What does not complete an unfinished character leaves U+FFFD in its place, and begins after that.
        broken = unfinished and text.startswith(REPLACEMENT) and not (unfinished + piece).startswith(REPLACEMENT.encode())
        self.start = self._length + bool(broken)
        self._length += len(text)
        return text

    def hidden(self, index: int) -> str:
        """How a token is spelt that is no part of the text; empty for all others."""
        raw = b"" if self._tokenizer.token_bytes(index, self._skip_special) else self._tokenizer.token_bytes(index, False)
        return raw.decode(errors="replace")

    def finish(self) -> str:
        """What is left when no more ids come: U+FFFD for a character that never got whole, or nothing."""
        return self._decoder.decode(b"", final=True)


def _stated_size(file: GgufFile) -> int:
    """Tokens of a model without a list of them: what the file says, or rows of its embedding."""
    key = f"{file.metadata.get('general.architecture')}.vocab_size"
    size = file.metadata.get(key)
    if size is None and "token_embd.weight" in file.tensors:
        return int(file.tensors["token_embd.weight"].shape[0])
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ModelError(
            f"a model without a vocabulary needs {key}, a whole number of at least 1; it is {repr(size)[:80]}", file.path
        )
    return size
