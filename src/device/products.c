/* Lists of products, and their way to the backend. */
#include "device/products.h"

#include "base/fatal.h"
#include "device/backend.h"

#define FIRST_CAPACITY 32

#define ATTENTION_NBYTES ((int64_t)256 << 20)
#define ATTENTION_ELEMENT 12 /* bytes: a score and its gradient in f32, what both become in 16 bits */
#define ATTENTION_ROWS 128
#define ATTENTION_MANY_ROWS 512

static bool same(const ProductShape *a, const ProductShape *b) {
    return a->m == b->m && a->n == b->n && a->k == b->k && a->trans_a == b->trans_a && a->trans_b == b->trans_b &&
           a->shape == b->shape && a->range == b->range;
}

void products_add(ProductList *list, ProductShape shape) {
    if (shape.m == 0 || shape.n == 0 || shape.k == 0)
        return;
    for (int i = 0; i < list->count; i++)
        if (same(&list->shape[i], &shape))
            return;
    if (list->count == list->capacity) {
        const int capacity = list->capacity > 0 ? 2 * list->capacity : FIRST_CAPACITY;
        ProductShape *more = HEAP_ALLOC(ProductShape, capacity);
        for (int i = 0; i < list->count; i++)
            more[i] = list->shape[i];
        heap_free(list->shape);
        list->shape = more;
        list->capacity = capacity;
    }
    list->shape[list->count++] = shape;
}

void products_deinit(ProductList *list) {
    heap_free(list->shape);
    *list = (ProductList){0};
}

/* ---- attention ---- */

/* Rows of `heads` heads that fit, a multiple of ATTENTION_ROWS. */
static int64_t rows_that_fit(int64_t T, int64_t heads) {
    return ATTENTION_NBYTES / (heads * T * ATTENTION_ELEMENT) / ATTENTION_ROWS * ATTENTION_ROWS;
}

AttentionCut attention_cut(int64_t T, int64_t H, int64_t K) {
    const int64_t group = H / K, pair = rows_that_fit(T, group);
    int64_t rows = rows_that_fit(T, H);
    if (rows < ATTENTION_MANY_ROWS)
        rows = pair < ATTENTION_MANY_ROWS ? pair : ATTENTION_MANY_ROWS;
    if (rows < ATTENTION_ROWS)
        rows = ATTENTION_ROWS;
    if (rows > T || H * T * T * ATTENTION_ELEMENT <= ATTENTION_NBYTES)
        rows = T;
    const int64_t pairs = ATTENTION_NBYTES / (group * rows * T * ATTENTION_ELEMENT);
    return (AttentionCut){rows, pairs > 0 ? pairs : 1};
}

ProductShape attention_product_rows(int64_t rows, int64_t keys, int64_t D) {
    return (ProductShape){.m = rows, .n = keys, .k = D, .trans_b = true};
}

ProductShape attention_product_keys(int64_t rows, int64_t keys, int64_t D) {
    return (ProductShape){.m = rows, .n = D, .k = keys};
}

ProductShape attention_product_transposed(int64_t rows, int64_t keys, int64_t D) {
    return (ProductShape){.m = keys, .n = D, .k = rows, .trans_a = true};
}

void products_add_attention(ProductList *list, int64_t T, int64_t H, int64_t K, int64_t D) {
    const AttentionCut cut = attention_cut(T, H, K);
    for (int64_t first = 0; first < T; first += cut.rows) {
        const int64_t keys = T - first < cut.rows ? T : first + cut.rows, rows = (keys - first) * (H / K);
        products_add(list, attention_product_rows(rows, keys, D));
        products_add(list, attention_product_keys(rows, keys, D));
        products_add(list, attention_product_transposed(rows, keys, D));
    }
}

/* ---- devices ---- */

bool device_chooses_products(const Device *device) {
    return device_choice_nbytes(device, 1) > 0;
}

size_t device_choice_nbytes(const Device *device, int count) {
    return device->backend->choice_nbytes != NULL ? device->backend->choice_nbytes(device, count) : 0;
}

Status device_choose_products(Device *device, const ProductList *list, void *choices) {
    DM_ASSERT(device->products[0] == '\0');
    return device_chooses_products(device) ? device->backend->choose_products(device, list, choices) : STATUS_OK;
}

Status device_pin_products(Device *device, const ProductList *list, const void *choices) {
    DM_ASSERT(device->products[0] == '\0');
    return device_chooses_products(device) ? device->backend->pin_products(device, list, choices) : STATUS_OK;
}

const char *device_products(const Device *device) {
    return device->products;
}
