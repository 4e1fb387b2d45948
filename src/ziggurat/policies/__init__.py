"""Several policies from one training run, and what they decide together (SEERL, arXiv 2001.05209).

A learning rate that falls and jumps back (``schedule``) leaves a snapshot at the end of each cycle. ``selection`` takes
a good and diverse subset of them, by divergences of their ``actions``; ``discrete_rules`` and ``continuous_rules`` turn
the actions of the members into one. These four, and ``scores``, work on plain arrays. ``agents`` trains snapshots with
stable-baselines3, which the extra ``rl`` installs; ``training``, ``choosing`` and ``judging`` make a run of it.
"""
