#include "backend/cuda/prelude.cuh"
#include "backend/cuda/lists.cuh"

// y = x, rounded from Wide to Number, for the tensors of a list. Lists: x, y. Grid: (blocks per tensor, slots).
KERNEL(round_lists, Lists lists) {
    for (i64 i = element(); i < lists.len[blockIdx.y]; i += i64(gridDim.x) * blockDim.x)
        list<Number>(lists, 1)[i] = narrow(list<const Wide>(lists, 0)[i]);
}
