/* The matrix products that a network makes, for devices that want to know them before the first step. */
#ifndef DMUON_MODEL_PRODUCTS_H
#define DMUON_MODEL_PRODUCTS_H

#include "device/products.h"
#include "model/shape.h"

/* Adds those of every tp rank: forward and backward of leaves of B sequences of T tokens, validation, and the logits
 * that follow a prompt. */
void model_products(const ModelShape *shape, int64_t B, int64_t T, int tp_size, ProductList *list);

#endif
