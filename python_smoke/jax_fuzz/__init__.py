"""Random JAX programs on pjrt-arena with random settings, compared bit for bit with JAX's CPU backend.

    python -m jax_fuzz --minutes 10                       processes with one seed after the other
    python -m jax_fuzz --seed 7 --settings "strategy=tpu,limit=8MiB,..." --steps 41      one of them again

    drawn.py       the settings of a process, drawn from its seed
    values.py      what arrays are made of, and how two of them are compared
    terms.py       operations: each makes one array of others
    control.py     operations with a program inside: loops, branches, callbacks
    programs.py    functions made of operations, with several results, for jax.jit
    world.py       the arrays of one thread, each in the arena and on JAX's CPU backend
    actions.py     what a thread may do next: put, run, cut, view, donate, delete, compare, compact, ...
    process.py     one process: its threads, and what must be left at its end

    hints.py       random programs that run out of memory, and whether hints work: `python -m jax_fuzz.hints`

A seed decides everything but how threads meet. All numbers are such that every order of computing gives the same bits:
integers of any size, and floating-point numbers that are small whole numbers.
"""
