"""What a machine with a GPU is asked in one run, beside JAX's own allocators: `python3 python_smoke/gpu --out FOLDER`.

    __main__.py   the stages: facts, the wave, what fails again with one thing off each, what takes time
    jobs.py       who measures what, on which backend, and how long that takes
    backends.py   JAX's own allocators and the arena's strategies, as environments of a process
    process.py    a process for each job, with a time limit and a log; Places, so that the device's memory is enough
    child.py      that process: one measurement, one JSON object; progress.py: what it has so far, and where it hangs
    report.py     what is wrong, and tables, for people; units.py, how numbers look
    machine.py    versions, GPUs, and what else may explain a figure
    sizes.py      how large everything is: for a GPU, for a rehearsal or a test
    shim.c        hides attributes of the device from the arena alone

What a process can be asked, by module:

    driver_facts.py  what the design rests on, of the driver alone, by libcuda.py
    checks.py        programs whose results are known
    models.py        a transformer and an MLP in plain JAX; steps.py measures their training steps
    room.py          memory that is nearly full: what fits, what is refused and how soon, how fast it is compacted
    threads.py       threads beside compactions
    loops.py         loops that do not wait
    beside_torch.py  of those, the ones with PyTorch in the same process
    small.py         clients, dispatch, copies from and to the host

The package needs Python 3.12's standard library, JAX, NumPy and ml_dtypes, and PyTorch where that is installed: nothing
of git, and no network. It runs from an unpacked tree, on a library that was built elsewhere.
"""
