/* What the parts of the cuBLASLt stand-in share: descriptions as they lie in the library's opaque structs, and
 * algorithms.
 */
#ifndef CUDA_STANDIN_CUBLASLT_H
#define CUDA_STANDIN_CUBLASLT_H

#include <cublasLt.h>
#include <string.h>

#include "call.h"

#define LT_CALL(error)                                                                                                 \
    const ApiCall call(__func__, __builtin_return_address(0));                                                         \
    if (call.fails)                                                                                                    \
    return error

namespace lt {

constexpr uint64_t ALIVE = 0x7468676c73616c62;
constexpr size_t ALIGNMENT = 16;

struct Handle {
    uint64_t magic;
};

struct Layout {
    cudaDataType type;
    int32_t batch;
    int64_t rows, cols, ld, step;
};

struct Operation {
    cublasComputeType_t compute;
    cudaDataType scale;
    cublasOperation_t transposed[2]; /* a, b */
};

struct Preference {
    uint64_t workspace;
    uint32_t schemes, alignment[4]; /* a, b, c, d */
};

/* What a product is to an algorithm. */
struct Form {
    int64_t m, n, k;
    int32_t batch;
    uint32_t transposed, type; /* of a and b */
};

struct Algorithm {
    uint32_t kind, workspace;
    int32_t splits;
    uint32_t scheme, chunk; /* terms that are added up at a time */
    int32_t batches;        /* takes more than one */
    int64_t m, n, k;
    uint32_t transposed, type;
};

static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "a layout is opaque");
static_assert(sizeof(Operation) <= sizeof(cublasLtMatmulDescOpaque_t), "an operation is opaque");
static_assert(sizeof(Preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t), "a preference is opaque");
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t), "an algorithm is opaque");

template <class T, class Opaque> T load(const Opaque *from) {
    T value;
    memcpy(&value, from, sizeof value);
    return value;
}

template <class T, class Opaque> void store(Opaque *to, const T &value) {
    memset(to, 0, sizeof *to);
    memcpy(to, &value, sizeof value);
}

/* A failure that the program must not pass over. */
inline cublasStatus_t noted(cublasStatus_t status, const char *api) {
    if (status != CUBLAS_STATUS_SUCCESS)
        standin::note_error(api);
    return status;
}

inline size_t element_nbytes(cudaDataType type) {
    return type == CUDA_R_32F ? sizeof(float) : sizeof(uint16_t);
}

inline void check_handle(cublasLtHandle_t handle, const char *api) {
    if (handle == nullptr || ((const Handle *)handle)->magic != ALIVE)
        standin::fault("%s: the handle was destroyed, or is none", api);
}

struct Layouts {
    Operation operation;
    Layout a, b, c, d;
};

inline Layouts layouts_of(cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                          cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
    return {load<Operation>(operation), load<Layout>(a), load<Layout>(b), load<Layout>(c), load<Layout>(d)};
}

/* False: no product that this library knows, or one that fast algorithms refuse. */
bool form_of(const Layouts &l, Form *form);
bool runs(const Algorithm &x, const Form &f);

} // namespace lt

#endif
