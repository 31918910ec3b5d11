"""One rank: sums eight gradients by MPI_Allreduce and by a fixed tree. Rank 0 prints a digest of both sums.

    MPI_LIBRARY=/path/of/libmpi.so mpirun -n 4 python3 allreduce.py

The fixed tree is the scheme of crates/tealight-train/src/training/distributed in a few lines. The negative control is
the usual way: each rank adds its gradients one after the other, and MPI_Allreduce adds the sums. These sums must depend
on the number of ranks, or the comparison of runs would prove nothing.
"""

import array
import ctypes as c
import hashlib
import os

N = 4096
TERMS = 8
library = c.CDLL(os.environ["MPI_LIBRARY"], mode=c.RTLD_GLOBAL)


def handles():
    if "libmpi_abi" in os.environ["MPI_LIBRARY"]:
        return [c.c_void_p(value) for value in (0x101, 0x247, 0x210, 0x21)]
    if hasattr(library, "ompi_mpi_comm_world"):
        names = ["ompi_mpi_comm_world", "ompi_mpi_byte", "ompi_mpi_float", "ompi_mpi_op_sum"]
        return [c.c_void_p(c.addressof(c.c_char.in_dll(library, name))) for name in names]
    return [c.c_int(value) for value in (0x44000000, 0x4C00010D, 0x4C00040A, 0x58000003)]


def gradient(index):
    state, values = (index * 2654435761 + 12345) & 0xFFFFFFFF, array.array("f", bytes(4 * N))
    for i in range(N):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        values[i] = (state / 2**32 - 0.5) * (1 + (state & 7))
    return values


def add(left, right):
    # The sum in f64 is exact, so it is rounded once, to f32.
    return array.array("f", (a + b for a, b in zip(left, right)))


def tree(terms):
    while len(terms) > 1:
        pairs = [terms[i : i + 2] for i in range(0, len(terms), 2)]
        terms = [add(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return terms[0]


def one_after_the_other(terms):
    total = terms[0]
    for term in terms[1:]:
        total = add(total, term)
    return total


def zeros():
    return array.array("f", bytes(4 * N))


def at(values):
    return c.c_void_p(values.buffer_info()[0])


def digest(values):
    return hashlib.sha256(values.tobytes()).hexdigest()[:12]


world, byte, float32, plus = handles()
library.MPI_Init(None, None)
rank, size = c.c_int(), c.c_int()
library.MPI_Comm_rank(world, c.byref(rank))
library.MPI_Comm_size(world, c.byref(size))
rank, size = rank.value, size.value

gradients = [gradient(i) for i in range(rank * TERMS // size, (rank + 1) * TERMS // size)]
by_mpi, received, by_tree = zeros(), zeros(), zeros()
summed = one_after_the_other(gradients)
library.MPI_Allreduce(at(summed), at(by_mpi), c.c_int(N), float32, plus, world)
own = tree(gradients)
shard = c.c_int(4 * N // size)
library.MPI_Alltoall(at(own), shard, byte, at(received), shard, byte, world)
length = N // size
shard_sum = tree([received[i * length : (i + 1) * length] for i in range(size)])
library.MPI_Allgather(at(shard_sum), shard, byte, at(by_tree), shard, byte, world)
if rank == 0:
    print(f"allreduce {digest(by_mpi)} tree {digest(by_tree)}", flush=True)
library.MPI_Finalize()
