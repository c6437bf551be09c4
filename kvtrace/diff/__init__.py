"""Two runs, or two sets of runs: did it get worse?

Requests inside a run are not independent, so the run is the unit:

    measuring    a run -> values a request, counts, the users' own numbers; gathering: of all runs, each once
    pairing      values a request -> effects a run, over the requests that every run has
    permutation  effects -> exact p, adjusted over all gates; welch, noise: bounds of the change
    tail         a few requests much slower, which no mean shows
    gates        gate file -> what may move, and how far
    verdicts     worse | better | same | inconclusive, and exit codes; judging: all gates together
    factors      what must be the same in both; saying: why, in words
    causes/      a regression -> how far, which class of time, which requests, what these have in common
    comparing    all of it

Pairing, permutation, welch, noise, tail, verdicts and judging are pure functions of arrays and frames.
"""
