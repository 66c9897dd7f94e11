/* Matrix products whose algorithms are chosen before the first step. A device that rounds operands (DeviceOptions
 * .compute) calls the vendor's products, of which there are many for each shape, with other bits: one is taken for each
 * shape at start-up, the same on every rank and for every batch count, and any other product is fatal. Devices that
 * compute exactly choose nothing, and all of this does nothing there. */
#ifndef DMUON_DEVICE_PRODUCTS_H
#define DMUON_DEVICE_PRODUCTS_H

#include "device/device.h"

/* op(a) [m,k] times op(b) [k,n], as in Gemm: one of its parts. */
typedef struct ProductShape {
    int64_t m, n, k;
    bool trans_a, trans_b;
    GemmShape shape;
    GemmRange range;
} ProductShape;

typedef struct ProductList {
    ProductShape *shape; /* owned */
    int count, capacity;
} ProductList;

/* Once each, in the order in which they come; those without an element of result or a term are none. */
void products_add(ProductList *list, ProductShape shape);
void products_deinit(ProductList *list);

/* How attention becomes products where a device rounds operands. The query heads of a kv head are rows of one matrix. A
 * block of query rows of several *pairs* of sequence and kv head has its scores and their gradients in memory at once,
 * as many as 256 MiB hold. The rows follow from one sequence alone, so that the bits do not depend on how many
 * sequences are computed together; the pairs change no bit. */
typedef struct AttentionCut {
    int64_t rows;  /* tokens of a block: all T, or a multiple of 128; fewer than 512 only where one pair needs it */
    int64_t pairs; /* at least 1 */
} AttentionCut;
AttentionCut attention_cut(int64_t T, int64_t H, int64_t K);

/* The products of a block of `rows` rows (tokens times heads) and `keys` keys: scores and their gradient, [rows,D]
 * times [keys,D]^T; output and q's gradient, [rows,keys] times [keys,D]; gradients of k and v, [rows,keys]^T times
 * [rows,D].
 */
ProductShape attention_product_rows(int64_t rows, int64_t keys, int64_t D);
ProductShape attention_product_keys(int64_t rows, int64_t keys, int64_t D);
ProductShape attention_product_transposed(int64_t rows, int64_t keys, int64_t D);
/* Those of every block, of forward and backward. */
void products_add_attention(ProductList *list, int64_t T, int64_t H, int64_t K, int64_t D);

/* Does this device choose? */
bool device_chooses_products(const Device *device);
/* Bytes of the choices for `count` products, opaque. */
size_t device_choice_nbytes(const Device *device, int count);
/* On one rank. STATUS_DEVICE when there is no fit algorithm for a product. */
DM_NODISCARD Status device_choose_products(Device *device, const ProductList *list, void *choices);
/* On every rank, with the bytes of that one rank, once. STATUS_DEVICE when they do not hold for this device. */
DM_NODISCARD Status device_pin_products(Device *device, const ProductList *list, const void *choices);
/* What was pinned, in a few words that differ when the choices do; "" while nothing is. */
const char *device_products(const Device *device);

#endif
