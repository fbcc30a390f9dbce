"""What transformers runs for `custom_generate`: its own generate, with verified answers.

transformers copies this file and runs the copy, so it stands alone.
"""

from __future__ import annotations

from typing import Any

from trueline.errors import SettingError
from trueline.methods import DEFAULT, make_method
from trueline.space import GroundingSpace, read_space


def generate(
    model: Any,
    inputs: Any = None,
    *,
    space: str | GroundingSpace | None = None,
    tokenizer: Any = None,
    question: str | None = None,
    settings: dict[str, Any] | None = None,
    logits_processor: Any = None,
    **arguments: Any,
) -> Any:
    """The result of model.generate with corrective decoding on a space or its folder.

    `settings` are those of the method, such as {"strength": 0.5}. Without a question, it is the
    last user turn of each row.
    """
    ids = arguments.get("input_ids") if inputs is None else inputs
    if space is None or tokenizer is None or ids is None:
        raise SettingError(
            "corrective decoding needs tokens, a space and the tokenizer: "
            "model.generate(input_ids, ..., space='facts.space', tokenizer=tokenizer)"
        )
    opened = space if isinstance(space, GroundingSpace) else read_space(space)
    method: Any = make_method(DEFAULT, space=opened, settings=settings)
    processor = method.processor(
        model, tokenizer, question=question, prompt_length=ids.shape[1]
    )
    given = {name: value for name, value in arguments.items() if value is not None}
    return model.generate(
        inputs, logits_processor=[*(logits_processor or ()), processor], **given
    )
