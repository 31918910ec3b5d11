#include "backend/cuda/prelude.cuh"
#include "backend/cuda/lists.cuh"

// y = factor · x for the tensors of a list. Lists: x, y. Grid: (blocks per tensor, slots).
KERNEL(scale_lists, Lists lists, double factor) {
    for (i64 i = element(); i < lists.len[blockIdx.y]; i += i64(gridDim.x) * blockDim.x)
        list<Number>(lists, 1)[i] = narrow(Wide(factor) * wide(list<const Number>(lists, 0)[i]));
}
