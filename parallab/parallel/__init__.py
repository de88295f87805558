"""Ways to split a training step over ranks, one file for each.

Every file holds one way whole: the idea, its source, and the code that does it. `build` puts them
together; the closed forms stand in the file of the same name in `predict/`.
"""
