"""The closed loop: groups of runs of the same work, side by side, and the command that makes them.

    plan.py         the plan file: what is fixed, what drives the load, what each group starts
    groups/         kvtrace compare: what each group measured, and what each step from one to the next brought
    running/        kvtrace experiment: the plan's engines started, loaded, recorded, round by round
    cutting.py      a part of a recording, by time, as a run of its own

A run's group is in its run.json (`kvtrace run --group NAME`); several runs of a group are its rounds, and the
run is the unit of every interval but those of quantiles inside the only run of a group.
"""
