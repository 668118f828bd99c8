"""`python -m orchestrator ...`: the same commands as `lull`, without installation."""

from orchestrator.cli import main

main()
