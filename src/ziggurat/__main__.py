"""``python -m ziggurat`` is ``ziggurat``."""

from ziggurat.cli.main import main

main()
