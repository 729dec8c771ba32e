"""Language codes as people write them (ISO 639 with or without a region or script: ja, jpn, zh-CN, zh_Hant, ZH)."""

import functools
import re

from attention_jax.errors import InputError

ANY = "xx"
"""The code of no particular language."""
BLEU_TOKENS = {"zh": "zh", "yue": "zh", "wuu": "zh"} | dict.fromkeys(("ja", "ko", "th", "lo", "km", "my"), "char")
"""sacrebleu's tokenizer by language, for languages without spaces between words; 13a for the others."""


@functools.cache
def parse_language(code: str) -> str:
    """Return the language of a code, without region and script: of two letters if it has such a code. Without Babel,
    which knows the codes, it is the part before the region.

    Raises InputError for a word that is no code, or two letters that no language has.

    >>> [parse_language(code) for code in ("zh_TW", "ZH", "jpn", "deu", "xx")]
    ['zh', 'zh', 'ja', 'de', 'xx']
    """
    match = re.fullmatch(r"([a-z]{2,3})([-_][a-z0-9]+)*", code.strip().lower())
    primary = match and match[1]
    try:
        from babel.core import Locale, get_global
    except ModuleNotFoundError as error:  # a run may be evaluated without what its training needed
        if primary:
            return primary
        raise error
    primary = get_global("language_aliases").get(primary, primary)
    if not primary or (len(primary) == 2 and primary != ANY and primary not in Locale("en").languages):
        raise InputError(
            f"--data.languages needs codes of languages, such as en, ja or zh-CN, or xx for any; got {code!r}"
        )
    return primary.partition("_")[0]


def bleu_tokens(code: str) -> str:
    """Return sacrebleu's tokenizer for plain text in a language.

    >>> bleu_tokens("zh-CN"), bleu_tokens("jpn"), bleu_tokens("en-GB")
    ('zh', 'char', '13a')
    """
    return BLEU_TOKENS.get(parse_language(code), "13a")
