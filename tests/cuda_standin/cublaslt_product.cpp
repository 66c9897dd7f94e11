/* The products of the cuBLASLt stand-in: queued like a kernel, sums in f32 in the order of the algorithm that was
 * given. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>
#include <algorithm>

#include "cublaslt.h"

using namespace standin;
using namespace lt;

namespace {

float widen(const void *x, int64_t i, cudaDataType type) {
    if (type == CUDA_R_16BF)
        return __bfloat162float(((const __nv_bfloat16 *)x)[i]);
    if (type == CUDA_R_16F)
        return __half2float(((const __half *)x)[i]);
    float value = ((const float *)x)[i];
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    if (isfinite(value))
        word = (word + 0x1000u) & ~0x1fffu; /* tf32: the nearest with 10 bits after the point */
    memcpy(&value, &word, sizeof value);
    return value;
}

struct ProductOp : Op {
    Layout a, b, d;
    const char *at_a, *at_b;
    char *at_d;
    Form form;
    uint32_t chunk;
    float alpha, beta;
    Step step() override;
    void run(int32_t index);
};

/* out[k][i] = op(x), i along the result. */
std::vector<float> panel(const void *x, const Layout &l, bool k_is_column) {
    const int64_t n = k_is_column ? l.rows : l.cols, k = k_is_column ? l.cols : l.rows;
    std::vector<float> out((size_t)(n * k));
    for (int64_t p = 0; p < k; p++) {
        for (int64_t i = 0; i < n; i++)
            out[(size_t)(p * n + i)] = widen(x, k_is_column ? p * l.ld + i : i * l.ld + p, l.type);
    }
    return out;
}

void ProductOp::run(int32_t index) {
    const void *x = at_a + (int64_t)element_nbytes(a.type) * a.step * index;
    const void *y = at_b + (int64_t)element_nbytes(b.type) * b.step * index;
    float *out = (float *)at_d + d.step * index;
    const std::vector<float> left = panel(x, a, (form.transposed & 1) == 0),
                             right = panel(y, b, (form.transposed & 2) != 0);
    std::vector<float> sum((size_t)form.m), part((size_t)form.m);
    for (int64_t j = 0; j < form.n; j++) {
        std::fill(sum.begin(), sum.end(), 0.0f);
        for (int64_t begin = 0; begin < form.k; begin += chunk) {
            const int64_t end = std::min(form.k, begin + chunk);
            std::fill(part.begin(), part.end(), 0.0f);
            for (int64_t p = begin; p < end; p++) {
                const float factor = right[(size_t)(p * form.n + j)], *column = &left[(size_t)(p * form.m)];
                for (int64_t i = 0; i < form.m; i++)
                    part[(size_t)i] += column[i] * factor;
            }
            for (int64_t i = 0; i < form.m; i++)
                sum[(size_t)i] += part[(size_t)i];
        }
        for (int64_t i = 0; i < form.m; i++) {
            float *to = out + j * d.ld + i;
            *to = beta == 0.0f ? alpha * sum[(size_t)i] : alpha * sum[(size_t)i] + beta * *to;
        }
    }
}

Step ProductOp::step() {
    for (int32_t index = 0; index < form.batch && !settings().skip_kernels; index++)
        run(index);
    return Step::DONE;
}

/* Everything from the first to the last element that the product touches. */
size_t extent_nbytes(const Layout &l) {
    return (size_t)((l.batch - 1) * l.step + (l.cols - 1) * l.ld + l.rows) * element_nbytes(l.type);
}

void check_place(const char *argument, const void *at, const Layout &l) {
    if ((uintptr_t)at % ALIGNMENT != 0)
        fault("cublasLtMatmul: %s = %p is not at a multiple of %zu bytes", argument, at, ALIGNMENT);
    check_device_range("cublasLtMatmul", argument, at, extent_nbytes(l));
}

} // namespace

STANDIN_API cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void *alpha,
                                          const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                                          cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                                          cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout,
                                          const cublasLtMatmulAlgo_t *algorithm, void *, size_t workspace_nbytes,
                                          cudaStream_t stream) {
    LT_CALL(CUBLAS_STATUS_EXECUTION_FAILED);
    check_handle(handle, __func__);
    const Layouts l = layouts_of(operation, a_layout, b_layout, c_layout, d_layout);
    Form form;
    if (algorithm == nullptr)
        fault("cublasLtMatmul without an algorithm: the library would choose one now");
    const Algorithm x = load<Algorithm>(algorithm);
    if (!form_of(l, &form) || !runs(x, form) || workspace_nbytes < x.workspace || c != d)
        return noted(CUBLAS_STATUS_INVALID_VALUE, __func__);
    check_place("a", a, l.a);
    check_place("b", b, l.b);
    check_place("d", d, l.d);
    ProductOp *op = new ProductOp;
    op->a = l.a;
    op->b = l.b;
    op->d = l.d;
    op->at_a = (const char *)a;
    op->at_b = (const char *)b;
    op->at_d = (char *)d;
    op->form = form;
    op->chunk = x.chunk;
    memcpy(&op->alpha, alpha, sizeof op->alpha);
    memcpy(&op->beta, beta, sizeof op->beta);
    op->describe("product of %ld x %ld over %ld, %d times", (long)form.m, (long)form.n, (long)form.k, form.batch);
    op->use(a, extent_nbytes(l.a));
    op->use(b, extent_nbytes(l.b));
    op->use(d, extent_nbytes(l.d));
    op->repeats = true;
    op->launch = "cublasLtMatmul";
    enqueue(stream, op, __func__);
    return CUBLAS_STATUS_SUCCESS;
}
