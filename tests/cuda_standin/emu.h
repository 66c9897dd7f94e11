/* Force-included where g++ compiles kernels/cuda for the CPU: the vocabulary of device code, as far as the kernels use
 * it. Every operation gives the bits that a GPU gives. Not there: device variables, inline PTX, tensor cores,
 * asynchronous copies, cooperative groups. */
#ifndef CUDA_STANDIN_EMU_H
#define CUDA_STANDIN_EMU_H

#include <cuda_runtime.h>
#include <math.h>
#include <string.h>
#include <type_traits>
#include <utility>

#include "block.h"

/* ---- words ------------------------------------------------------------------------------------------------------ */

#undef __shared__
#define __shared__ static /* blocks run one after another */
#undef __launch_bounds__
#define __launch_bounds__(...)
#define threadIdx emu::context.thread
#define blockIdx emu::context.block
#define blockDim emu::context.block_dim
#define gridDim emu::context.grid_dim
constexpr int warpSize = 32;

namespace emu {

inline void *dynamic_shared() {
    return context.dynamic_shared;
}

inline unsigned lane() {
    return context.linear % 32;
}

/* `from`: the lane whose value is wanted; `within`: it lies in the caller's part of the warp, else the own value stays.
 */
template <class T> T exchange(unsigned mask, T value, unsigned from, bool within) {
    static_assert(sizeof(T) <= sizeof(uint64_t) && std::is_trivially_copyable<T>::value, "not a value to shuffle");
    uint64_t word = 0;
    memcpy(&word, &value, sizeof value);
    word = sync_warp(mask, word, within ? from % 32 : lane(), Vote::NONE);
    T result;
    memcpy(&result, &word, sizeof result);
    return result;
}

template <class To, class From> To bits(From value) {
    static_assert(sizeof(To) == sizeof(From), "bits of another size");
    To result;
    memcpy(&result, &value, sizeof result);
    return result;
}

} // namespace emu

/* ---- waiting for others ------------------------------------------------------------------------------------------ */

inline void __syncthreads() {
    emu::sync_block();
}
inline int __syncthreads_count(int predicate) {
    return (int)emu::sync_block_count(predicate != 0);
}
inline int __syncthreads_or(int predicate) {
    return emu::sync_block_count(predicate != 0) != 0;
}
inline int __syncthreads_and(int predicate) {
    return emu::sync_block_count(predicate == 0) == 0;
}
inline void __syncwarp(unsigned mask = ~0u) {
    emu::sync_warp(mask, 0, 0, emu::Vote::BALLOT);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    return (unsigned)emu::sync_warp(mask, predicate != 0, 0, emu::Vote::BALLOT);
}
inline int __any_sync(unsigned mask, int predicate) {
    return __ballot_sync(mask, predicate) != 0;
}
inline int __all_sync(unsigned mask, int predicate) {
    return __ballot_sync(mask, predicate == 0) == 0;
}
template <class T> T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    const unsigned w = (unsigned)width;
    return emu::exchange(mask, value, emu::lane() / w * w + (unsigned)source % w, true);
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int flip, int width = 32) {
    const unsigned w = (unsigned)width, from = emu::lane() ^ (unsigned)flip;
    return emu::exchange(mask, value, from, from / w <= emu::lane() / w);
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
    const unsigned w = (unsigned)width;
    return emu::exchange(mask, value, emu::lane() + by, emu::lane() % w + by < w);
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
    return emu::exchange(mask, value, emu::lane() - by, emu::lane() % (unsigned)width >= by);
}

/* ---- arithmetic, one IEEE rounding each (-ffp-contract=off) ------------------------------------------------------ */

inline float __fadd_rn(float a, float b) {
    return a + b;
}
inline float __fsub_rn(float a, float b) {
    return a - b;
}
inline float __fmul_rn(float a, float b) {
    return a * b;
}
inline float __fdiv_rn(float a, float b) {
    return a / b;
}
inline float __fsqrt_rn(float a) {
    return sqrtf(a);
}
inline float __fmaf_rn(float a, float b, float c) {
    return fmaf(a, b, c);
}
inline double __dadd_rn(double a, double b) {
    return a + b;
}
inline double __dsub_rn(double a, double b) {
    return a - b;
}
inline double __dmul_rn(double a, double b) {
    return a * b;
}
inline double __ddiv_rn(double a, double b) {
    return a / b;
}
inline double __dsqrt_rn(double a) {
    return sqrt(a);
}
inline double __fma_rn(double a, double b, double c) {
    return fma(a, b, c);
}

/* ---- bits -------------------------------------------------------------------------------------------------------- */

inline unsigned __float_as_uint(float x) {
    return emu::bits<unsigned>(x);
}
inline int __float_as_int(float x) {
    return emu::bits<int>(x);
}
inline float __uint_as_float(unsigned x) {
    return emu::bits<float>(x);
}
inline float __int_as_float(int x) {
    return emu::bits<float>(x);
}
inline long long __double_as_longlong(double x) {
    return emu::bits<long long>(x);
}
inline double __longlong_as_double(long long x) {
    return emu::bits<double>(x);
}
inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
inline int __ffs(int x) {
    return __builtin_ffs(x);
}
inline int __clz(int x) {
    return x == 0 ? 32 : __builtin_clz((unsigned)x);
}
inline int __clzll(long long x) {
    return x == 0 ? 64 : __builtin_clzll((unsigned long long)x);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

template <class T> T __ldg(const T *p) {
    return *p;
}
inline void __threadfence() {
}
inline void __threadfence_block() {
}

/* CUDA's overloads for the types that kernels compare. */
template <class T> T min(T a, T b) {
    return b < a ? b : a;
}
template <class T> T max(T a, T b) {
    return a < b ? b : a;
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

namespace emu {

/* What the compiler knows of a kernel; handed to the stand-in when the library is loaded. */
template <auto K> struct Registered;
template <class... P, void (*K)(P...)> struct Registered<K> {
    static constexpr unsigned short size[] = {sizeof(P)..., 0};
    static constexpr unsigned char is_pointer[] = {std::is_pointer<P>::value..., 0};

    template <size_t... I> static void run_threads(void **arguments, std::index_sequence<I...>) {
        while (next_thread())
            K(*static_cast<std::remove_reference_t<P> *>(arguments[I])...);
    }
    static void run(void **arguments) {
        run_threads(arguments, std::index_sequence_for<P...>{});
    }
    static bool make() {
        register_kernel(&kernel);
        return true;
    }
    static inline Kernel kernel = {(const void *)K, (int)sizeof...(P), size, is_pointer, run, nullptr};
    static inline bool made = make();

    static cudaError_t launch(dim3 grid, dim3 block, size_t nbytes_shared, cudaStream_t stream, P... arguments) {
        (void)made;
        void *pointers[] = {(void *)&arguments..., nullptr};
        return launch_kernel(&kernel, grid, block, nbytes_shared, stream, pointers);
    }
};

template <auto K, class... A>
cudaError_t launch(dim3 grid, dim3 block, size_t nbytes_shared, cudaStream_t stream, A &&...arguments) {
    return Registered<K>::launch(grid, block, nbytes_shared, stream, std::forward<A>(arguments)...);
}

} // namespace emu

#endif
