"""Code from outside the package that a config names: how it is imported, and where it failed.

In: ``MODULE:CLASS``. Out: the class, or an error that shows the user's own files and lines. Neighbours: ``core.parts``
reads configs that name such code; every room that runs it calls it through here.
"""
