// Arguments of kernels that process many tensors in one launch (`Launch::lists` in lists.rs).
//
// Grid: (blocks per tensor, tensors). Block (b, slot) processes a part of the tensors of `slot`: a thread starts at
// element() and advances by the number of threads of all blocks of the slot.

#define MOST 48

// List k holds tensor at[k][slot] for each slot. All tensors of a slot have len[slot] elements.
struct Lists {
    void* at[4][MOST];
    i64 len[MOST];
};

template <class T> DEVICE T* list(const Lists& lists, int k) { return static_cast<T*>(lists.at[k][blockIdx.y]); }

struct Rates { double lr[MOST], weight_decay[MOST]; };
