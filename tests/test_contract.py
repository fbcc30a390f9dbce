"""Every engine and integration is held to one contract (tests/contract.py)."""

import pytest
import torch
from contract import LiveStep, compare_live, engine_noise, live_step


def run(*steps):
    return [LiveStep(token, gap) for token, gap in steps]


def test_a_live_step_is_the_best_token_and_its_lead():
    assert live_step(torch.tensor([0.0, 3.5, 1.0, 3.0])) == LiveStep(1, 0.5)


def test_noise_is_how_far_two_engines_disagree_about_the_lead():
    a, b = torch.tensor([0.0, 3.0, 1.0]), torch.tensor([9.0, 4.0, 2.5])
    assert engine_noise([(a, a + 7)]) == 0.0
    assert engine_noise([(a, a), (a, b)]) == pytest.approx(0.5)


def test_runs_may_part_only_within_the_noise_and_such_steps_are_counted():
    reference = [run((5, 9.0), (6, 0.2), (7, 9.0)), run((5, 9.0), (2, 3.0))]
    found = compare_live(reference, reference, noise=0.0)
    assert (found.same, found.within_noise, found.faults) == (5, 0, ())
    other = [run((5, 9.0), (8, 0.1), (9, 9.0)), run((5, 9.0), (2, 3.0))]
    found = compare_live(reference, other, noise=0.25)
    assert (found.same, found.within_noise, found.faults) == (3, 1, ())
    found = compare_live(reference, other, noise=0.1)
    assert (found.same, found.within_noise, found.faults) == (3, 0, ((0, 1, 0.2),))
    assert "1 beyond it" in str(found)


@pytest.mark.parametrize("longer", [0, 1])
def test_a_run_that_ends_early_or_late_is_a_fault(longer):
    runs = [[run((5, 9.0))], [run((5, 9.0), (6, 9.0))]]
    found = compare_live(runs[longer], runs[1 - longer], noise=1.0)
    assert (found.same, len(found.faults)) == (1, 1)
