"""Which strategy for which setup.

answer       the rule of thumb and the ranked plans, from the rest
candidates   every plan there is, and which of them fit
advice       what the answer is, as data and as text
"""

from parallab.advise.answer import advise

__all__ = ["advise"]
