"""What is trained, as sizes only.

spec       Model, its sizes and parameter count
shapes     every parameter by name and shape
presets    models by name
configs    from a Hugging Face config.json
families   how each family's config is read
"""

from parallab.models.spec import Model

__all__ = ["Model"]
