"""What a label means to training: its loss, what the model's outputs say about it, and the prediction made of them.

In: outputs of a model and labels. Out: losses of rows, predictions in the label's units.
A :class:`~ziggurat.objectives.task.Task` describes a label, and an :class:`~ziggurat.objectives.outputs.Outputs` turns
what a model returns into what the losses, the metrics and predictions read. Start at :mod:`~ziggurat.objectives.task`.
"""
