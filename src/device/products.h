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
