"""`make bench`: the same programs on JAX's built-in CPU backend, on the bare engine and on pjrt-arena, in one run.

    programs.py   what is measured, declared once, as data
    backends.py   what it is measured on, and how a process gets there
    worker.py     one program on one backend, in one process
    runner.py     rounds: who is measured when, and whether all computed the same
    results.py    the JSON file: its schema, medians and quartiles
    tables.py     Markdown
    chart.py      SVG
    guard.py      compares two JSON files and names what got slower
    __main__.py   the command line
    whole.py      whole processes instead: loops in which nobody waits, their memory and time

How a round goes. For each program the backends take turns, in another order each round, so that a slow minute of the
machine hits all of them, and a ratio is always one of neighbours:

    round 1   add_16: builtin bare arena ... floor    add_256: bare arena ... floor builtin    ...
    round 2   add_16: bare arena ... floor builtin    add_256: arena ... floor builtin bare    ...

Each (program, backend, round) has a process of its own: the runner imports JAX, starts no backend and no thread, and
forks. So the import is paid once, every process begins with the same memory, and the highest resident memory of a
process is that of one program on one backend.

The floor is what a perfect allocator could reach: the same program on the built-in backend, writing into a donated
destination of the results' type that is used again and again. It is measured where results take 16 MiB or more; below
that, memory is no large part of the time. A loop of `result = step(x)` holds the old result until the new one is there,
so it needs two destinations in turn: the floor of two. The same with the bare engine says what our engine, an older XLA
than JAX's own, can reach.
"""
