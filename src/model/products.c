/* One row here for each call in linear.c's terms, and attention; a unit test compares the list with what a step
 * launches. */
#include "model/products.h"

#include "model/leaf.h"

/* y [rows,out] = x w^T, and its two gradients. */
static void forward(ProductList *list, int64_t rows, int64_t out, int64_t in) {
    products_add(list, (ProductShape){.m = rows, .n = out, .k = in, .trans_b = true});
}

static void backward(ProductList *list, int64_t rows, int64_t out, int64_t in) {
    products_add(list, (ProductShape){.m = out, .n = in, .k = rows, .trans_a = true});
    products_add(list, (ProductShape){.m = rows, .n = in, .k = out});
}

typedef void (*Linear)(ProductList *list, int64_t rows, int64_t out, int64_t in);

static void layer(const ModelShape *shape, const LocalShape *local, int64_t rows, Linear linear, ProductList *list) {
    linear(list, rows, local->H * shape->D, shape->C);
    linear(list, rows, local->K * shape->D, shape->C);
    linear(list, rows, shape->C, local->H * shape->D);
    linear(list, rows, local->F, shape->C);
    linear(list, rows, shape->C, local->F);
}

void model_products(const ModelShape *shape, int64_t B, int64_t T, int tp_size, ProductList *list) {
    for (int rank = 0; rank < tp_size; rank++) {
        const LocalShape local = local_shape(shape, tp_size, rank);
        layer(shape, &local, B * T, forward, list);
        layer(shape, &local, B * T, backward, list);
        products_add_attention(list, T, local.H, local.K, shape->D);
        forward(list, B * T, local.vocab, shape->C);
        backward(list, B * T, local.vocab, shape->C);
        layer(shape, &local, T, forward, list); /* a prompt: of its tokens only the last has logits */
        forward(list, 1, local.vocab, shape->C);
    }
}
