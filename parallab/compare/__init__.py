"""Several Reports at once.

side_by_side   what each costs, and where and why two of them differ
changes        what changed between two, in plain words
collection     many in one file, and reading what people saved
export         to take along: CSV, PNG, and a page that needs nothing else
"""

from parallab.compare.side_by_side import compare, differences

__all__ = ["compare", "differences"]
