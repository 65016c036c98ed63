"""`run.sh`: what a machine with a GPU is asked in one run. Does it work, how fast is it, how much memory is of use?

    run.sh        finds the library, calls `python -m gpu`
    plan.py       the parts, in the order of their worth: who measures what, on which backend, and how long that takes
    backends.py   JAX's own allocators and the arena's strategies, as environments of a process
    runner.py     a fresh process for each measurement, with a time limit; results are on disk after each
    child.py      that process: one measurement, one JSON object
    sizes.py      how large everything is: for a GPU, for a rehearsal on a CPU, for a test
    tables.py     Markdown for people

What a process can be asked, by module:

    machine.py    versions, driver, GPUs; how the engine behaves with views (capability flags)
    checks.py     programs whose results are known
    models.py     a transformer, a convolution net and an MLP in plain JAX; steps.py measures their training steps
    room.py       fragmented memory: what still fits, how much is usable, how fast it is compacted
    transfers.py  from and to the host; how much of a copy a step hides
    small.py      dispatch, many live arrays, many small kernels

A measurement that fails, or takes too long, is a row that says so, and the run goes on.
"""
