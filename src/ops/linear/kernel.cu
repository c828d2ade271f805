// After cuBLAS has multiplied, a thread per pack of outputs:
//     out = activation(out + bias)
#include "finish.cuh"

FOR_EACH_DTYPE(linear, finish, Finish)
