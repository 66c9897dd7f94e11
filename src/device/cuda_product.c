/* One Gemm as calls of the vendor's product, on a CUDA device that rounds operands: what they need around them. */
#include "device/cuda.h"
#include "device/gemm_cuda.h"

#include "base/arena.h"
#include "base/fatal.h"

#define PIECE_ALIGN 256 /* of what lies in scratch, bytes */

/* A symmetric product is computed in quarters, without the upper one, from here on: the three that are left must each
 * fill a large device with tiles. */
#define QUARTERS_FROM 4096

struct CudaProducts {
    GemmCuda *gemms;
    DeviceCompute compute;
};

/* ---- calls ---- */

static bool in_quarters(GemmShape shape, int64_t m) {
    return shape == GEMM_LOWER_MIRRORED && m >= QUARTERS_FROM && m % (2 * GEMM_CUDA_ALIGN) == 0;
}

GemmCuda *cuda_products_gemms(const CudaProducts *products) {
    return products->gemms;
}

OperandType cuda_products_type(const CudaProducts *products) {
    return products->compute == DEVICE_BF16 ? OPERAND_BF16 : OPERAND_F32;
}

static OperandType operand_type(const CudaProducts *products, GemmRange range) {
    return range == GEMM_RANGE_UNIT ? OPERAND_F16 : cuda_products_type(products);
}

static GemmCall call_of(const CudaProducts *products, const ProductShape *p) {
    const int64_t cut = in_quarters(p->shape, p->m) ? 2 : 1;
    return (GemmCall){p->m / cut, p->n / cut, p->k, p->trans_a, p->trans_b, operand_type(products, p->range)};
}

static GemmCall *calls_of(const CudaProducts *products, const ProductList *list) {
    GemmCall *calls = HEAP_ALLOC(GemmCall, list->count + 1);
    for (int i = 0; i < list->count; i++)
        calls[i] = call_of(products, &list->shape[i]);
    return calls;
}

size_t cuda_choice_nbytes(const Device *device, int count) {
    return ((const CudaDevice *)device)->products != NULL ? gemm_cuda_choice_nbytes(count) : 0;
}

Status cuda_choose_products(Device *head, const ProductList *list, void *choices) {
    const CudaProducts *products = cuda_device(head)->products;
    GemmCall *calls = calls_of(products, list);
    const Status status = gemm_cuda_choose(products->gemms, calls, list->count, choices);
    heap_free(calls);
    return status;
}

Status cuda_pin_products(Device *head, const ProductList *list, const void *choices) {
    _Static_assert(sizeof head->products >= GEMM_CUDA_IDENTITY, "the identity fits");
    const CudaProducts *products = cuda_device(head)->products;
    GemmCall *calls = calls_of(products, list);
    const Status status = gemm_cuda_pin(products->gemms, calls, list->count, choices, head->products);
    heap_free(calls);
    return status;
}

/* ---- one product ---- */

/* A part's operand as it is stored. */
typedef struct Operand {
    const float *x;
    int64_t rows, cols, stride, step;
    const void *in_place; /* in the product's type, fit to be read where it is; NULL: it is packed first */
} Operand;

typedef struct Product {
    const CudaProducts *products;
    const KernelCtx *ctx;
    const Gemm *gemm;
    int64_t batch;
    OperandType type;
    GemmPlace c;
    char *a, *b; /* scratch for operands */
} Product;

static const void *ready_made(const Product *p, const float *x, const uint16_t *bf16, int64_t stride, int64_t step) {
    const void *at = p->type == OPERAND_F32 ? (const void *)x : p->type == OPERAND_BF16 ? bf16 : NULL;
    return gemm_cuda_aligned(at, stride, p->batch > 1 ? step : 0, p->type) ? at : NULL;
}

static Operand operand_a(const Product *p, const GemmPart *part) {
    const bool t = p->gemm->trans_a;
    return (Operand){
        part->a,   t ? part->k : p->gemm->m, t ? p->gemm->m : part->k,
        part->lda, part->stride_a,           ready_made(p, part->a, part->a_bf16, part->lda, part->stride_a)};
}

static Operand operand_b(const Product *p, const GemmPart *part) {
    const bool t = p->gemm->trans_b;
    return (Operand){
        part->b,   t ? p->gemm->n : part->k, t ? part->k : p->gemm->n,
        part->ldb, part->stride_b,           ready_made(p, part->b, part->b_bf16, part->ldb, part->stride_b)};
}

static size_t operand_nbytes(const Product *p, const Operand *o) {
    if (o->in_place != NULL)
        return 0;
    const int64_t nelem = p->batch * o->rows * gemm_cuda_stride(o->cols, p->type);
    return ((size_t)nelem * gemm_cuda_element(p->type) + PIECE_ALIGN - 1) / PIECE_ALIGN * PIECE_ALIGN;
}

static GemmPlace prepare(const Product *p, const Operand *o, char *scratch) {
    const int64_t stride = gemm_cuda_stride(o->cols, p->type);
    if (o->in_place != NULL)
        return (GemmPlace){(void *)(uintptr_t)o->in_place, o->stride, o->step};
    operand_pack_cuda(p->ctx, &(OperandPack){.dst = scratch,
                                             .src = o->x,
                                             .rows = o->rows,
                                             .cols = o->cols,
                                             .dst_stride = stride,
                                             .src_stride = o->stride,
                                             .batch = (int)p->batch,
                                             .dst_step = o->rows * stride,
                                             .src_step = o->step,
                                             .type = p->type});
    return (GemmPlace){scratch, stride, o->rows * stride};
}

static bool same_operand(const Operand *a, const Operand *b) {
    return a->x == b->x && a->rows == b->rows && a->cols == b->cols && a->stride == b->stride && a->step == b->step;
}

static GemmPlace moved(GemmPlace place, int64_t rows, int64_t cols, size_t element) {
    place.at = (char *)place.at + (size_t)(rows * place.stride + cols) * element;
    return place;
}

/* Rows from i and columns from j of the result, as far as the call goes. */
static void call_at(const Product *p, const GemmCall *call, GemmTask task, int64_t i, int64_t j) {
    const size_t element = gemm_cuda_element(p->type);
    task.a = moved(task.a, p->gemm->trans_a ? 0 : i, p->gemm->trans_a ? i : 0, element);
    task.b = moved(task.b, p->gemm->trans_b ? j : 0, p->gemm->trans_b ? 0 : j, element);
    task.c = moved(task.c, i, j, sizeof(float));
    gemm_cuda_call(p->products->gemms, call, &task, p->ctx->stream);
}

static void run_part(const Product *p, const GemmPart *part, bool accumulate) {
    const Gemm *gemm = p->gemm;
    const Operand a = operand_a(p, part), b = operand_b(p, part);
    const ProductShape shape = {gemm->m, gemm->n, part->k, gemm->trans_a, gemm->trans_b, gemm->shape, gemm->range};
    const GemmCall call = call_of(p->products, &shape);
    GemmTask task = {.c = p->c, .batch = p->batch, .accumulate = accumulate};
    task.a = prepare(p, &a, p->a);
    task.b = same_operand(&a, &b) ? task.a : prepare(p, &b, p->b);
    call_at(p, &call, task, 0, 0);
    if (!in_quarters(gemm->shape, gemm->m))
        return;
    call_at(p, &call, task, call.m, 0);
    call_at(p, &call, task, call.m, call.n);
}

/* Scratch for the largest part, and for the result where it cannot be written in place. */
static void place(Product *p) {
    const Gemm *gemm = p->gemm;
    const int64_t stride = gemm_cuda_stride(gemm->n, OPERAND_F32);
    const bool direct = gemm_cuda_aligned(gemm->c, gemm->ldc, p->batch > 1 ? gemm->stride_c : 0, OPERAND_F32);
    size_t a_nbytes = 0, b_nbytes = 0;
    for (int i = 0; i < gemm->nparts; i++) {
        const Operand a = operand_a(p, &gemm->part[i]), b = operand_b(p, &gemm->part[i]);
        const size_t a_needs = operand_nbytes(p, &a), b_needs = operand_nbytes(p, &b);
        a_nbytes = a_needs > a_nbytes ? a_needs : a_nbytes;
        b_nbytes = b_needs > b_nbytes ? b_needs : b_nbytes;
    }
    const size_t c_nbytes = direct ? 0 : (size_t)(p->batch * gemm->m * stride) * sizeof(float);
    char *scratch = p->ctx->scratch(p->ctx, 0, a_nbytes + b_nbytes + c_nbytes + PIECE_ALIGN);
    p->a = scratch;
    p->b = scratch + a_nbytes;
    p->c = direct ? (GemmPlace){gemm->c, gemm->ldc, gemm->stride_c}
                  : (GemmPlace){scratch + a_nbytes + b_nbytes, stride, gemm->m * stride};
}

/* From the place of the result to where it was asked for. `value`: there is one. */
static void store(const Product *p, bool value) {
    const Gemm *gemm = p->gemm;
    if (value ? p->c.at != gemm->c : !gemm->accumulate)
        product_store_cuda(p->ctx, &(ProductStore){.c = gemm->c,
                                                   .value = value ? p->c.at : NULL,
                                                   .m = gemm->m,
                                                   .n = gemm->n,
                                                   .c_stride = gemm->ldc,
                                                   .value_stride = p->c.stride,
                                                   .batch = (int)p->batch,
                                                   .c_step = gemm->stride_c,
                                                   .value_step = p->c.step,
                                                   .mode = gemm->accumulate ? STORE_ADD : STORE_SET});
    if (gemm->shape == GEMM_LOWER_MIRRORED)
        product_mirror_cuda(
            p->ctx,
            &(ProductMirror){
                .c = gemm->c, .m = gemm->m, .c_stride = gemm->ldc, .batch = p->batch, .c_step = gemm->stride_c});
}

void cuda_product(const CudaProducts *products, const KernelCtx *ctx, const Gemm *gemm) {
    Product p = {.products = products,
                 .ctx = ctx,
                 .gemm = gemm,
                 .batch = gemm->batch > 1 ? gemm->batch : 1,
                 .type = operand_type(products, gemm->range)};
    if (gemm->m == 0 || gemm->n == 0)
        return;
    place(&p);
    bool value = false;
    for (int i = 0; i < gemm->nparts; i++) {
        if (gemm->part[i].k == 0)
            continue;
        run_part(&p, &gemm->part[i], value || (gemm->accumulate && p.c.at == gemm->c));
        value = true;
    }
    store(&p, value);
}

/* ---- life ---- */

Status cuda_products_create(CudaDevice *device, DeviceCompute compute) {
    if (compute == DEVICE_EXACT)
        return STATUS_OK;
    CudaProducts *products = HEAP_ALLOC(CudaProducts, 1);
    products->compute = compute;
    device->products = products;
    TRY(gemm_cuda_create(&products->gemms));
    return STATUS_OK;
}

void cuda_products_destroy(CudaDevice *device) {
    if (device->products != NULL)
        gemm_cuda_destroy(device->products->gemms);
    heap_free(device->products);
}

DeviceCompute cuda_compute(const CudaDevice *device) {
    return device->products != NULL ? device->products->compute : DEVICE_EXACT;
}
