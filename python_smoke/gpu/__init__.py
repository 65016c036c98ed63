"""`run.sh`: what a machine with a GPU is asked in one run. Does it work, how fast is it, how much memory is of use?

    run.sh        finds the library, calls `python -m gpu`
    plan.py       the parts, in the order of their worth: who measures what, on which backend, and how long that takes
    backends.py   JAX's own allocators and the arena's strategies, as environments of a process
    runner.py     a fresh process for each measurement, with a time limit; results are on disk after each
    child.py      that process: one measurement, one JSON object; leash.py ends it with the runner
    progress.py   in that process: what it has so far is on disk, and where it hangs is in its log
    logs.py       what is kept of a log
    sizes.py      how large everything is: for a GPU, for a rehearsal on a CPU, for a test
    tables.py     Markdown for people; tables_memory.py has the parts about memory, form.py how numbers look

What a process can be asked, by module:

    driver_facts.py  what the design rests on, of the driver alone; driver_calls.py has more of it, fact.py the list,
                     libcuda.py the calls
    machine.py       driver, GPUs; how the engine behaves with views (capability flags)
    inventory.py     versions, the library's sum, the tools and variables of the machine
    checks.py        programs whose results are known
    models.py        a transformer, a convolution net and an MLP in plain JAX; steps.py measures their training steps
    room.py          fragmented memory: what still fits, how much is usable, how fast it is compacted
    pressure.py      arrays and scratch up to the limit, and up to the device's last bytes
    start.py         the warm-up; the first array, a trim, the end
    beside_torch.py  PyTorch in the same process
    transfers.py     from and to the host; how much of a copy a step hides
    small.py         dispatch, many live arrays, many small kernels and what their graphs take

A measurement that fails, or takes too long, is a row that says so, and the run goes on. `for_tests` has some that do.
"""
