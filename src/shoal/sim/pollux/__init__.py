"""The ground of Pollux (OSDI 2021): measured models, their workloads, and the rules by which time passes there.

`profiles` reads the measurements, `jobs` turns them into how far a job gets in a minute, `replay` lets a cluster of
such jobs run under a policy, round by round. `baselines` has the two policies whose completion times were published
(Tiresias and Optimus): that they come out to the second is what makes the rest believable. `compare` puts our own
policies on the same ground, and `synthetic` makes look-alike measurements for those who do not have the originals.
"""
