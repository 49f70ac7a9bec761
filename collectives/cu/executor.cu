// Runs execution plans, for collectives/src/gpu. SYMRAIL_NUMBER is the type of the elements (symrail/number.cuh).
#include "executor.cuh"

// One call; `how` is the reduction, and in a higher bit whether elements are rounded after every step of it.
extern "C" __global__ void __launch_bounds__(1024)
    execute_plan(const symrail_plan* plan, symrail_u64 input, symrail_u64 output, symrail_u64 part, symrail_u64 chunk,
                 symrail_u64 how) {
    __shared__ symrail_operand operands[SYMRAIL_STEP_SPANS];
    symrail_executor<SYMRAIL_NUMBER> executor(*plan, operands, input, output, part, chunk, (symrail_u32)(how & 0xff),
                                              (how >> 8) != 0, blockIdx.x);
    executor.run();
}

extern "C" __global__ void __launch_bounds__(1024) divide_elements(symrail_u64 at, symrail_u64 count, symrail_u64 by) {
    symrail_u64 step = (symrail_u64)gridDim.x * blockDim.x;
    for (symrail_u64 i = (symrail_u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        symrail_divide_element<SYMRAIL_NUMBER>(at + i * sizeof(SYMRAIL_NUMBER::stored), (symrail_u32)by);
}

// Multiplies all elements by a factor: the bytes of `factor`, or the element at that address.
extern "C" __global__ void __launch_bounds__(1024) multiply_elements(symrail_u64 at, symrail_u64 count, symrail_u64 factor,
                                                                     symrail_u64 is_value) {
    typedef SYMRAIL_NUMBER::stored T;
    symrail_u64 step = (symrail_u64)gridDim.x * blockDim.x;
    T by;
    if (is_value != 0) by = *(const T*)&factor;
    else symrail_load_element<SYMRAIL_NUMBER>(factor, by);
    for (symrail_u64 i = (symrail_u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        symrail_multiply_element<SYMRAIL_NUMBER>(at + i * sizeof(T), by);
}
