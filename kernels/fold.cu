// fold: W addends, one result, stored in up to kProcs places.
//
// It is the whole reduction where one process holds every logical rank, the addition of the transports that carry
// bytes themselves (NCCL send and receive), and the addition of the largest messages between peers, whose slices
// arrive by the copy engines in chunks while the chunk before is added here and stored to every GPU. Between peers
// the barrier kernel stands before the first chunk and after the last.
//
// Any grid and block will do; nothing waits.
#include "sum.cuh"

struct FoldArgs {
  Sum sum;
  u64 count;  // elements of each buffer
};

template <class T>
DEVICE void fold(const FoldArgs &a) { sum_part<T>(a.sum, 0, a.count); }

KERNEL(fold_float16, FoldArgs, fold<Float16>)
KERNEL(fold_bfloat16, FoldArgs, fold<BFloat16>)
KERNEL(fold_float32, FoldArgs, fold<Float32>)
KERNEL(fold_float64, FoldArgs, fold<Float64>)
