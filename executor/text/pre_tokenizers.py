"""How each pre-tokenizer of a BPE vocabulary cuts text into pieces before merging, as data: name -> passes and defaults.

A pass is a regular expression of Oniguruma. It cuts each piece that the passes before it left: every match is a piece, and so
is the text between two matches. Names and behaviour are those of llama.cpp (src/llama-vocab.cpp, src/unicode.cpp). It
approximates some tokenizer.json files; comments say where pieces differ from those of Hugging Face's own tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tokenizers import Regex


@dataclass(frozen=True)
class PreTokenizer:
    """One way to cut text, with the defaults that its name implies. Keys of a file override add_bos.

    passes: regular expressions, in order. raw: tokens hold UTF-8 text and a space is U+2581 in them; else each byte is one
    character of GPT-2's table. drops_spaces: white space becomes no token. nfc: text is first composed. ignore_merges: a piece
    that is a token is that token. force_bos: BOS is added even if the file says no. add_bos, add_sep: whether the model wants
    BOS before a text, and SEP between two. default_ids: without keys BOS and EOS are token 11. clean_spaces: whether the
    model's own tokenizer removes the space before some punctuation of a decoded text.
    """

    passes: tuple[str, ...]
    raw: bool = False
    drops_spaces: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False
    force_bos: bool = False
    add_sep: bool = False
    default_ids: bool = True
    clean_spaces: bool = True

    def regexes(self) -> list[Regex]:
        """The passes, compiled by the library `tokenizers`."""
        from tokenizers import Regex

        return [Regex(one) for one in self.passes]


_CONTRACTION: Final = r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
_LEAD: Final = r"[^\r\n\p{L}\p{N}]?"
_SYMBOLS: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CJK: Final = "\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff"


def _words(
    numbers: str = r"\p{N}",
    *,
    contraction: str = _CONTRACTION + "|",
    letters: str = r"\p{L}+",
    symbols: str = _SYMBOLS,
    spaces: str = _SPACES,
) -> str:
    """Contractions, words with the character before them, numbers, symbols with the space before them, white space."""
    return f"{contraction}{_LEAD}{letters}|{numbers}|{symbols}|{spaces}"


def _cased(numbers: str, *, contraction: str, letters: str = r"\p{L}") -> str:
    """Words that begin with capitals and go on in small letters. Letters that are not ASCII count as both, and combining
    marks as neither: Hugging Face's own patterns tell case by \\p{Lu} and \\p{Ll}, and take marks into words."""
    upper, lower = f"[{letters}&&[^a-z]]", f"[{letters}&&[^A-Z]]"
    words = f"{_LEAD}{upper}*{lower}+{contraction}|{_LEAD}{upper}+{lower}*{contraction}"
    return rf"{words}|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


_GPT2: Final = r"'(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGITS_3: Final = r"\p{N}{1,3}"
_DEEPSEEK_WORDS: Final = r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
_DEEPSEEK_3: Final = (_DIGITS_3, f"[{_CJK}]+", rf"{_DEEPSEEK_WORDS}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}")
# Three digits from the right. The text before a number stays with its first digits, which Hugging Face's files keep apart:
# two spaces before a number are one piece there and two here.
_DIGITS_FROM_RIGHT: Final = (
    r"\P{N}*(?<!\p{N})\p{N}{1,2}(?=(?:\p{N}{3})*(?!\p{N}))|\P{N}*\p{N}{3}|\P{N}+"  # the last one keeps the search linear
)
# The same for ASCII digits inside a number; \G, the end of the last match, keeps the search linear.
_HEAD: Final = "(?:[0-9]{1,2}(?=(?:[0-9]{3})*(?![0-9])))?"
_THREES: Final = rf"(?:\G(?<=[0-9])|(?=(?:[0-9]{{3}})+(?![0-9])))[0-9]{{3}}(?:[^0-9]+{_HEAD})*"
# Case is lost: \p{Lu}, \p{Ll} and the like are all \p{L} to llama.cpp, so "fooBar" is one piece here and two in the files.
_MARKED: Final = rf"[\p{{L}}\p{{M}}]+(?:{_CONTRACTION})?"
_CASELESS: Final = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_HAN: Final = (
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b81f\U0002b820-\U0002ebef"
    "\U0002f800-\U0002fa1f"
)
# White space that is not ASCII is in no range of these two, where the files have U+2000 to U+200A, U+3000 and the like in them.
# The ranges of letters with case that deepseek-llm's tokenizer lists.
_DEEPSEEK_LETTERS: Final = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5"
    "\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d"
    "\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4"
    "\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d"
    "\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"
    "\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb"
    "\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_CJK: Final = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff&&[^\\s]]+"
_DEEPSEEK_LLM: Final = (
    r"[\r\n]",
    rf"\s?[{_DEEPSEEK_LETTERS}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3001-\u3002]+",
    r"(?<!\s)\s+\z",
    _DEEPSEEK_CJK,
    r"\p{N}+",
)
# llama.cpp's third range begins at U+8C48, the composed form of U+F900, where the file has it begin.
_AFMOE_ASIAN: Final = (
    "[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff"
    "\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_YOUTU_ASIAN: Final = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    f"|[\u3105-\u312f]+|[{_CJK}]+"
)
_BLOOM: Final = r" ?[^\s(|.,!?)" + "\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c]+"
_JAIS_SPACES: Final = "|".join(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
_LLAMA3: Final = PreTokenizer((_words(_DIGITS_3),))
_QWEN2: Final = PreTokenizer((_words(),), clean_spaces=False)
_GPT_2: Final = PreTokenizer((_GPT2,))
_STARCODER: Final = PreTokenizer((r"\p{N}", _GPT2))
_DEEPSEEK: Final = PreTokenizer(_DEEPSEEK_3, clean_spaces=False)
_O200K: Final = PreTokenizer((_cased(_DIGITS_3, contraction=f"(?:{_CONTRACTION})?"),), clean_spaces=False)
_TINY_AYA: Final = PreTokenizer(
    (_DIGITS_FROM_RIGHT, rf"{_LEAD}{_MARKED}|{_DIGITS_3}|{_CASELESS}|{_SPACES}"), clean_spaces=False
)
_LINES: Final = PreTokenizer((r"[^\n]+|\n+",), raw=True)
_GEMMA4: Final = replace(_LINES, add_bos=True, force_bos=True)

_ROWS: Final[tuple[tuple[str, PreTokenizer], ...]] = (
    ("default", PreTokenizer((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        replace(_LLAMA3, ignore_merges=True, add_bos=True),
    ),
    ("dbrx smaug-bpe", _LLAMA3),
    ("chatglm-bpe", replace(_LLAMA3, default_ids=False)),
    ("glm4 glm5", replace(_LLAMA3, default_ids=False, ignore_merges=True)),
    ("minicpm5", PreTokenizer((_DIGITS_3, _words(r"\p{N}+")), ignore_merges=True)),
    ("jais-2", PreTokenizer((_words(_DIGITS_3, spaces=rf"\s*[\r\n]+|{_JAIS_SPACES}|\s"),))),
    # Text is composed first, as Hugging Face's files say and llama.cpp does not.
    ("qwen2 deepseek-r1-qwen", replace(_QWEN2, nfc=True)),
    ("kormo f2llmv2 hunyuan solar-open grok-2", _QWEN2),
    ("megrez stablelm2", replace(_QWEN2, clean_spaces=True)),
    # Text is not composed, as in llama.cpp; Hugging Face's files say that it is.
    (
        "qwen35",
        PreTokenizer((_words(letters=r"[\p{L}\p{M}]+", symbols=r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"),), clean_spaces=False),
    ),
    ("ufakzeka", PreTokenizer((_words(contraction=""),), clean_spaces=False)),
    ("laguna", PreTokenizer((*_LINES.passes, _words()), clean_spaces=False)),
    ("seed-coder", PreTokenizer((_words(symbols=r" ?[^\s\p{L}\p{N}\r\n]+"),), clean_spaces=False)),
    # Hugging Face's file has possessive quantifiers; the pieces are the same.
    ("bailingmoe bailingmoe2 llada-moe", PreTokenizer((_words(spaces=r"\s*[\r\n]|\s+(?!\S)|\s+"),), clean_spaces=False)),
    (
        "exaone-moe",
        PreTokenizer(
            (
                _words(
                    letters=r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
                    symbols=r" ?[^\s\p{L}\p{N}]+[\r\n/]?",
                    spaces=r"\s*[\r\n]|\s+(?!\S)|\s+",
                ),
            )
        ),
    ),
    ("gpt-2 phi-2 olmo mpt jais exaone4 gigachat mellum modern-bert jina-es jina-de jina-v2-es jina-v2-de a.x-4.0", _GPT_2),
    ("jina-v1-en jina-v2-code roberta-bpe", replace(_GPT_2, add_sep=True)),
    ("trillion granite-docling", replace(_GPT_2, clean_spaces=False)),
    ("starcoder refact codeshell exaone minerva-7b mellum2", _STARCODER),
    ("smollm command-r", replace(_STARCODER, clean_spaces=False)),
    ("falcon", PreTokenizer((r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]"))),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", _O200K),
    (
        "granite-embed-multi-97m",
        PreTokenizer(
            (_cased(_DIGITS_3, contraction=f"(?:{_CONTRACTION})?", letters=r"\p{L}\p{M}"),),
            ignore_merges=True,
            clean_spaces=False,
        ),
    ),
    ("tekken", PreTokenizer((_cased(r"\p{N}", contraction=""),), ignore_merges=True, add_bos=True, clean_spaces=False)),
    ("tiny_aya cohere2moe", _TINY_AYA),
    (
        "youtu",
        PreTokenizer(
            (_YOUTU_ASIAN, rf"{_LEAD}{_MARKED}|\p{{N}}|{_CASELESS}|{_SPACES}"), ignore_merges=True, clean_spaces=False
        ),
    ),
    # Words are letters alone, in any case: the model's own pattern tells case and takes combining marks into words.
    (
        "kimi-k2",
        PreTokenizer(
            (rf"[{_HAN}]+|{_LEAD}[\p{{L}}&&[^{_HAN}]]+(?:{_CONTRACTION})?|{_DIGITS_3}|{_SYMBOLS}|{_SPACES}",),
            clean_spaces=False,
        ),
    ),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", _DEEPSEEK),
    (
        "spark2_5",
        PreTokenizer(
            (*_DEEPSEEK_3[:2], rf"{_DEEPSEEK_WORDS}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+", r"\p{N}"), clean_spaces=False
        ),
    ),
    ("afmoe", PreTokenizer((_DIGITS_FROM_RIGHT, _AFMOE_ASIAN, _DEEPSEEK_3[2]), clean_spaces=False)),
    ("deepseek-llm", PreTokenizer(_DEEPSEEK_LLM, clean_spaces=False)),
    ("deepseek-coder", PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}"), clean_spaces=False)),
    ("bloom gpt3-finnish", PreTokenizer((_BLOOM,))),
    ("poro-chat", PreTokenizer((_BLOOM,), clean_spaces=False)),
    ("viking", PreTokenizer((_BLOOM, r"\p{N}"), clean_spaces=False)),
    ("superbpe", PreTokenizer((r"\p{N}+", _THREES), clean_spaces=False)),
    (
        "chameleon",
        PreTokenizer(
            ("<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", r"[\t\n]|    |  ", r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", _GPT2),
            add_bos=True,
            clean_spaces=False,
        ),
    ),
    ("gemma4 granite-embed-multi-311m", _GEMMA4),
    ("sarvam-moe", replace(_LINES, clean_spaces=False)),
    ("whitespace", PreTokenizer((r"\S+",), raw=True, drops_spaces=True)),
)

PRE_TOKENIZERS: Final[Mapping[str, PreTokenizer]] = {name: made for names, made in _ROWS for name in names.split()}
"""By tokenizer.ggml.pre."""
