"""Two runs, or two sets of runs: did it get worse? Pairing, permutation, bounds, gates, verdicts.

Requests inside a run are not independent, so the run is the unit:

    values a request --pairing--> effects a run --permutation--> p, adjusted over all gates
                                                --welch, noise--> bounds of the change
    gate file --gates--> what may move, and how far --verdicts--> worse | better | same | inconclusive

Pure functions of arrays and frames: nothing here opens a file but the gate file.
"""
