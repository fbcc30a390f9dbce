"""The values that pass between the stages: an option is declared once."""

from dataclasses import fields

import click

from trueline.cli.options import answer_options
from trueline.types import Sampling, SamplingOptions


def test_keyword_arguments_are_the_fields_of_sampling():
    assert [*SamplingOptions.__annotations__] == [field.name for field in fields(Sampling)]


def test_every_described_option_is_a_flag_of_the_commands_that_answer():
    command = click.command()(answer_options(lambda **options: None))
    flags = [option.name for option in command.params]
    assert flags[-6:] == "max_new_tokens temperature top_k top_p seed stop".split()
