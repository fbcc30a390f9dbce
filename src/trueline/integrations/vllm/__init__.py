"""Corrective decoding in vLLM, as a logits processor (docs/vllm.md).

    TRUELINE_SPACES=facts=facts.space vllm serve MODEL \\
        --logits-processors trueline.integrations.vllm:Corrective

`Corrective` is for that flag, `Plugin` for the entry point `vllm.logits_processors`. They are
imported at first use, so that the rest of the package works without vLLM.
"""

from __future__ import annotations

from typing import Any

from trueline.errors import SettingError

__all__ = ["Corrective", "Plugin"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no {name!r}; it has {__all__}")
    try:
        from trueline.integrations.vllm import processors
    except ImportError as error:
        raise SettingError(
            f"vLLM 0.32 or newer cannot be imported ({error}); install it in an environment of "
            "its own (docs/vllm.md)"
        ) from error
    return getattr(processors, name)
