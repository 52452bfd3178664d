"""``python -m oxcart.cli``, for machines without the script on the path."""

from oxcart.cli import main

main()
