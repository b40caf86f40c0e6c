"""The algorithms that size a job: pure functions `(JobFacts, History, Limits, OptimizerSettings) -> ResourcePlan`.

Each module is one algorithm, named as in its plans' `algorithm`. An algorithm that has nothing to change returns an
empty plan whose reason says why, with the numbers it looked at. None of them raises for what was measured, plans
nothing of something, or more than a limit: all plans leave through one door, `proposing.proposed`, which sees to it.

`registry` lists them; `local` asks them in turn for a job that is alone with its own statistics. numpy is
imported when a fit is wanted (`pip install 'shoal[optimizer]'`); without it an algorithm that needs one says so.
"""
