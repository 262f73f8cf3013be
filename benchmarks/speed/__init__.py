"""Speed and memory against reference points: `python run_all.py speed`.

Measured, never asserted: a table with ratios and targets is the result, and nothing fails when a
target is missed. Three kinds of rows:

* :class:`domains.speed_cases.SpeedCase`: a ratio of two steps, measured in turns in one process;
* :class:`domains.speed_cases.TimeLimit`: seconds of one action against an upper limit;
* whatever `cases(device=…, quick=…)` in `domains/<name>/speed.py` offers, which are of both kinds.

How time is measured, and how memory: see :mod:`benchmarks.speed.measure`.
"""
