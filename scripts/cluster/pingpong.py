"""Two ranks send a message back and forth: prints the bytes per second of a long one, and the seconds of a short one.

    MPI_LIBRARY=/path/of/libmpi.so mpirun -n 2 python3 pingpong.py

Only one direction is in use at a time, so the result is a property of the network: how well a library uses both directions
at once is left to the exchange that is measured.
"""

import ctypes as c
import os
import statistics
import time

N = 1 << 22
library = c.CDLL(os.environ["MPI_LIBRARY"], mode=c.RTLD_GLOBAL)
if hasattr(library, "ompi_mpi_comm_world"):
    world, byte = (
        c.c_void_p(c.addressof(c.c_char.in_dll(library, name))) for name in ("ompi_mpi_comm_world", "ompi_mpi_byte")
    )
else:
    world, byte = c.c_int(0x44000000), c.c_int(0x4C00010D)
library.MPI_Init(None, None)
rank = c.c_int()
library.MPI_Comm_rank(world, c.byref(rank))
other, tag, status = c.c_int(1 - rank.value), c.c_int(0), c.create_string_buffer(256)
buffer = c.create_string_buffer(N)


def send(n):
    library.MPI_Send(buffer, c.c_int(n), byte, other, tag, world)


def receive(n):
    library.MPI_Recv(buffer, c.c_int(n), byte, other, tag, world, status)


def seconds(n):
    library.MPI_Barrier(world)
    start = time.perf_counter()
    for step in (send, receive) if rank.value == 0 else (receive, send):
        step(n)
    return (time.perf_counter() - start) / 2


long, short = (statistics.median([seconds(n) for _ in range(repeats)][2:]) for n, repeats in ((N, 7), (1, 40)))
if rank.value == 0:
    print(f"measured {N / (long - short)} {short}", flush=True)
library.MPI_Finalize()
