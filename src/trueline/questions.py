"""The tokens a model has read -> the question among them, and where its answer begins.

For loops that are not ours and hand on nothing but tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from trueline.prompts import Prompt, Tokenizer, apply_chat_template, has_chat_template

_MARK = "\ufdd1"  # stands for no character


@dataclass(frozen=True, slots=True)
class FoundQuestion:
    """A question in the tokens of a row."""

    question: str
    start: int  # tokens before the answer


def find_question(
    prompt: Prompt, tokenizer: Tokenizer, tokens: Sequence[int]
) -> FoundQuestion | None:
    """The last user turn, or what a prompt's template leaves of the text; None: there is none.

    A user turn that is written in the prompt's template counts for the question in it.
    """
    text = _read(tokenizer, tokens)
    if has_chat_template(tokenizer) and prompt.chat is not False:
        head, tail = _around_turn(tokenizer)
    else:
        head, tail = _around(prompt.render(_MARK, tokenizer))
    begin = text.rfind(head) if head else 0
    end = text.find(tail, begin + len(head)) if begin >= 0 and tail else -1
    if begin < 0 or end < 0:
        return None
    asked = text[begin + len(head) : end]
    before, behind = _around(prompt.fill(_MARK))
    if asked.startswith(before) and asked.endswith(behind):
        asked = asked[len(before) : len(asked) - len(behind)]
    if not asked.strip():
        return None
    return FoundQuestion(asked.strip(), _tokens_before(tokenizer, tokens, end + len(tail)))


def _around_turn(tokenizer: Tokenizer) -> tuple[str, str]:
    """What a chat template writes right before a user turn, the first or not, and behind it."""
    asked = {"role": "user", "content": _MARK}
    answered = {"role": "assistant", "content": "."}
    first, tail = _around(apply_chat_template(tokenizer, [asked]))
    later = apply_chat_template(tokenizer, [asked, answered, asked]).rpartition(_MARK)[0]
    shared = takewhile(
        lambda signs: signs[0] == signs[1], zip(first[::-1], later[::-1], strict=False)
    )
    return "".join(sign for sign, _ in shared)[::-1], tail


def _around(text: str) -> tuple[str, str]:
    head, _, tail = text.partition(_MARK)
    return head, tail


def _read(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    return str(tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False))


def _tokens_before(tokenizer: Tokenizer, tokens: Sequence[int], characters: int) -> int:
    """How many tokens the first characters of a text are."""
    low, high = 0, len(tokens)
    while low < high:
        middle = (low + high) // 2
        if len(_read(tokenizer, tokens[:middle])) < characters:
            low = middle + 1
        else:
            high = middle
    return low
