"""What a worker of the Ray tests does; it imports little, so that a worker starts soon."""

import os

from trueline.errors import SettingError


def work(unit: str) -> str:
    """Done, refused, or the end of the process."""
    if unit == "refused":
        raise SettingError("the unit is refused; give another")
    if unit == "broken":
        os._exit(1)
    return unit
