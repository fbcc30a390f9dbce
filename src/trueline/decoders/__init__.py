"""Decoding methods by name: a new one is a class and a line here."""

from trueline.decoders.greedy import Greedy
from trueline.decoders.rad import RAD

DECODERS = {method.name: method for method in (Greedy, RAD)}
