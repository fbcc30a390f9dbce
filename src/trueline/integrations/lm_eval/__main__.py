"""`python -m trueline.integrations.lm_eval`."""

from trueline.integrations.lm_eval import main

main()
