"""One rank's life: the model, the text, the steps. Imports torch, and nothing of Jupyter."""
