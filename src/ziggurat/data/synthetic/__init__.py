"""Generated logs with planted structure whose best possible AUC is known.

In: a config. Out: Arrow tables, chunk by chunk; the same config gives the same bytes on every machine.
"""
