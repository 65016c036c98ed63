"""`make soak MINUTES=60`: mixed work on four devices under memory pressure, with compaction on.

    workers.py     what is done: training, eager work, callbacks, views, programs over all devices, short-lived threads
    gate.py        the threads that do it, and how all of them come to rest for a sample
    samples.py     a sample each 10 seconds, and the verdict: memory and books must be flat
    plot.py        the samples as SVG

Each worker checks every array that it makes. At a sample all of them rest and let go of what they hold, so the books of
the arenas must then be, to the byte, what they were at the first sample.
"""
