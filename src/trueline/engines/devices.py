"""The name of a device in, the device out, once it is known to work here."""

from __future__ import annotations

import torch

from trueline.errors import SettingError

_SHOWN = 200  # characters of what torch says; of some devices it writes pages


def open_device(name: str | torch.device | None) -> torch.device:
    """The device of that name; None is the best there is."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
        if device.type == "meta":
            raise RuntimeError("it holds shapes without values")
    except (RuntimeError, AssertionError, NotImplementedError, TypeError, ImportError) as error:
        reason = (str(error).splitlines() or [""])[0][:_SHOWN]
        raise SettingError(
            f"device {str(name)!r} cannot be used here ({reason}); "
            "leave it out for the best there is"
        ) from error
    return device
