/* Lists of products, and their way to the backend. */
#include "device/products.h"

#include "base/fatal.h"
#include "device/backend.h"

#define FIRST_CAPACITY 32

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
