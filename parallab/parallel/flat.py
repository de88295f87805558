"""A unit's weights and gradients as two flat buffers, so that one collective moves all of them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class FlatUnit:
    """The weights of one unit as views of one buffer, in order, padded to a multiple of `parts`.

    The gradients' buffer exists from the first gradient of a backward pass until `free_gradients`.

    Args:
        parameters: the unit's weights; each keeps its values and becomes a view.
        parts: ranks that the buffer is cut into.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], parts: int) -> None:
        self.parameters = list(parameters)
        elements = sum(p.numel() for p in self.parameters)
        first = self.parameters[0]
        self.flat = torch.zeros(
            elements + -elements % parts, dtype=first.dtype, device=first.device
        )
        self.gradients: Tensor | None = None
        for parameter, view in zip(self.parameters, self._views(self.flat), strict=True):
            view.copy_(parameter.detach())
            parameter.data = view

    def collect(self, parameter: nn.Parameter) -> None:
        """Moves a gradient that has just been completed into the flat buffer."""
        if self.gradients is None:
            self.gradients = torch.zeros_like(self.flat)
            self._gradient_views = dict(
                zip(self.parameters, self._views(self.gradients), strict=True)
            )
        view = self._gradient_views[parameter]
        if parameter.grad is not None and parameter.grad is not view:
            view.copy_(parameter.grad)
            parameter.grad = view

    def free_gradients(self) -> Tensor | None:
        """Lets go of the full gradients, and returns their buffer for a collective under way."""
        buffer, self.gradients = self.gradients, None
        self._gradient_views = {}
        for parameter in self.parameters:
            parameter.grad = None
        return buffer

    def _views(self, buffer: Tensor) -> list[Tensor]:
        sizes = [p.numel() for p in self.parameters]
        used = buffer[: sum(sizes)].split(sizes)
        return [part.view(p.shape) for part, p in zip(used, self.parameters, strict=True)]
