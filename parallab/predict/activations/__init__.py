"""What forward keeps for backward, and what backward makes: bytes of activations, per kernel set.

`tape` follows what is alive; `layers`, `norms`, `losses`, `borders` (of the tensor axis) and
`mixtures` are operations on it; `units` puts them together to embedding, block, head and loss.
"""
