// The executor's device code as a library for tests on the CPU: a CPU thread for each thread of each block.
#include "device.hpp"

// In place of lanes.cuh, which uses instructions of a warp; `shared` has a word for each thread of the block.
#define SYMRAIL_LANES_CUH
#include <cmath>
template <class S>
static float symrail_sum_over(float value, float* shared) {
    symrail_u32 first = thread_rank - S::rank();
    shared[thread_rank] = value;
    S::sync();
    float sum = 0;
    for (symrail_u32 i = 0; i < S::size(); i++) sum += shared[first + i];
    S::sync();
    return sum;
}
template <class S>
static float symrail_lanes_max(float value, symrail_u32 lanes, float* shared) {
    shared[thread_rank] = value;
    S::sync();
    symrail_u32 first = thread_rank / lanes * lanes;
    for (symrail_u32 i = first; i < first + lanes && i < block_size; i++) value = std::fmax(value, shared[i]);
    S::sync();
    return value;
}

#include "exchange.cuh"
#include "executor.cuh"
#include "normed.cuh"
#include "packets.cuh"
#include "pushed.cuh"

#include <thread>
#include <vector>

struct Call {
    const symrail_plan* plan;
    symrail_u64 input, output, part, chunk, how;
    symrail_u64 blocks, threads, pe, timeout_ns;
    const symrail_u64* apart;
};

// All threads of all blocks of a PE's kernel.
template <class F>
static void launch(const Call& call, F&& kernel) {
    std::vector<std::thread> all;
    std::vector<Threads> blocks(call.blocks);
    for (symrail_u32 b = 0; b < call.blocks; b++) {
        pthread_barrier_init(&blocks[b].barrier, nullptr, call.threads);
        blocks[b].votes[0] = 0;
        for (symrail_u32 t = 0; t < call.threads; t++)
            all.emplace_back([&, b, t] {
                symrail_state = State{(int)call.pe, call.timeout_ns, 0};
                block = &blocks[b];
                thread_rank = t;
                block_size = call.threads;
                apart_of = call.apart;
                kernel(b);
            });
    }
    for (std::thread& one : all) one.join();
    for (Threads& threads : blocks) pthread_barrier_destroy(&threads.barrier);
}

template <class N>
static void run(const Call& call) {
    std::vector<std::vector<symrail_operand>> operands(call.blocks, std::vector<symrail_operand>(SYMRAIL_STEP_SPANS));
    launch(call, [&](symrail_u32 b) {
        symrail_executor<N> executor(*call.plan, operands[b].data(), call.input, call.output, call.part, call.chunk,
                                     (symrail_u32)(call.how & 0xff), (call.how >> 8) != 0, b);
        executor.run();
    });
}

// The type by its number in DataType::ALL.
template <class DO>
static auto with_type(int type, DO&& what) {
    switch (type) {
        case 0: return what(symrail_i8());
        case 1: return what(symrail_u8());
        case 2: return what(symrail_i32());
        case 3: return what(symrail_u32n());
        case 4: return what(symrail_i64());
        case 5: return what(symrail_u64n());
        case 6: return what(symrail_f16());
        case 7: return what(symrail_bf16());
        case 8: return what(symrail_f32());
        case 9: return what(symrail_f64());
        case 10: return what(symrail_e4m3());
        case 11: return what(symrail_e5m2());
        default: return what(symrail_e4m3b15());
    }
}

extern "C" void execute(int type, const Call* call) {
    with_type(type, [call](auto number) { run<decltype(number)>(*call); });
}
// Without a plan: `input` is the address of the kernel's argument, `output` is the kernel (`StraightKernel`).
extern "C" void straight(int type, const Call* call) {
    with_type(type, [call](auto number) {
        typedef decltype(number) N;
        const symrail_straight& argument = *(const symrail_straight*)call->input;
        std::vector<symrail_u64> done(2 * call->blocks);
        launch(*call, [&](symrail_u32 b) {
            symrail_pushed<N> pushed(argument, &done[2 * b], b);
            switch (call->output) {
                case SYMRAIL_STRAIGHT_PACKETS: return symrail_packets<N>(argument, b);
                case SYMRAIL_STRAIGHT_ALL_REDUCE: return pushed.all_reduce();
                case SYMRAIL_STRAIGHT_ONE_WAY: return pushed.one_way();
                default: return pushed.both_ways();
            }
        });
    });
}
// All-reduces with an RMS norm: `input` is the address of the kernel's argument, `output` is the kernel (`NormKernel`).
template <class N>
static void run_normed(const Call& call) {
    const symrail_norm& argument = *(const symrail_norm*)call.input;
    std::vector<float> shared(call.blocks * call.threads);
    launch(call, [&](symrail_u32 b) {
        symrail_normed<N> normed(argument, nullptr, &shared[b * call.threads], b);
        if (call.output == SYMRAIL_NORM_PACKETS) normed.template packets<true>();
        else if (call.output == SYMRAIL_NORM_PACKETS_ANYWHERE) normed.template packets<false>();
        else if (call.output == SYMRAIL_NORM_PUSHED) normed.template pushes<true>();
        else normed.template pushes<false>();
    });
}
extern "C" void normed(int type, const Call* call) {
    if (type == 6) run_normed<symrail_f16>(*call);
    else if (type == 7) run_normed<symrail_bf16>(*call);
    else run_normed<symrail_f32>(*call);
}
// Sends and receives: `input` is the address of the kernel's argument, `output` is its size (`Size`).
extern "C" void exchange(const Call* call) {
    std::vector<symrail_u64> found(2 * call->blocks);
    launch(*call, [&](symrail_u32 b) {
        switch (call->output) {
            case SYMRAIL_EXCHANGE_SOME:
                return symrail_exchange_block(*(const symrail_exchange_some*)call->input, &found[2 * b], b);
            case SYMRAIL_EXCHANGE_FEW:
                return symrail_exchange_block(*(const symrail_exchange_few*)call->input, &found[2 * b], b);
            default: return symrail_exchange_block(*(const symrail_exchange_call*)call->input, &found[2 * b], b);
        }
    });
}
extern "C" void divide(int type, symrail_u64 at, symrail_u64 count, symrail_u32 by) {
    with_type(type, [=](auto number) {
        typedef decltype(number) N;
        for (symrail_u64 i = 0; i < count; i++) symrail_divide_element<N>(at + i * sizeof(typename N::stored), by);
    });
}
// `factor`: an element's address.
extern "C" void multiply(int type, symrail_u64 at, symrail_u64 count, symrail_u64 factor) {
    with_type(type, [=](auto number) {
        typedef decltype(number) N;
        typename N::stored by;
        symrail_load_element<N>(factor, by);
        for (symrail_u64 i = 0; i < count; i++) symrail_multiply_element<N>(at + i * sizeof(typename N::stored), by);
    });
}
// Decodes a narrow type's code, and encodes a value.
extern "C" float decode(int type, unsigned code) {
    switch (type) {
        case 6: return symrail_f16::load((unsigned short)code);
        case 7: return symrail_bf16::load((unsigned short)code);
        case 10: return symrail_e4m3::load((unsigned char)code);
        case 11: return symrail_e5m2::load((unsigned char)code);
        default: return symrail_e4m3b15::load((unsigned char)code);
    }
}
extern "C" unsigned encode(int type, float value) {
    switch (type) {
        case 6: return symrail_f16::store(value);
        case 7: return symrail_bf16::store(value);
        case 10: return symrail_e4m3::store(value);
        case 11: return symrail_e5m2::store(value);
        default: return symrail_e4m3b15::store(value);
    }
}
