/* The algorithms of a device's matrix products, chosen by rank 0 before anything is computed. */
#include "base/arena.h"
#include "device/products.h"
#include "model/products.h"
#include "train/phases.h"

/* Those of all ranks: the same list whatever replicate, shard and this rank's part are. */
static ProductList products_of(const Session *s) {
    ProductList list = {0};
    const int tp_size = s->config.mesh.tp;
    model_products(&s->shape, s->config.batch.micro, s->config.batch.seq_len, tp_size, &list);
    for (int i = 0; i < s->params.count; i++)
        if (s->params.row[i].role == ROLE_MUON)
            ns_products(&s->plan.param[i].ns, s->plan.param[i].distributed ? tp_size : 1, &list);
    return list;
}

static Status pin(Session *s, const ProductList *list, void *choices, size_t nbytes) {
    Comm *all = s->world->comm;
    TRY(comm_agree(all, s->world->rank == 0 ? device_choose_products(s->device, list, choices) : STATUS_OK));
    host_broadcast(all, choices, (int64_t)nbytes, 0);
    return comm_agree(all, device_pin_products(s->device, list, choices));
}

Status phase_products(Session *s) {
    if (!device_chooses_products(s->device))
        return STATUS_OK;
    ProductList list = products_of(s);
    const size_t nbytes = device_choice_nbytes(s->device, list.count);
    void *choices = heap_alloc(nbytes);
    const Status status = pin(s, &list, choices, nbytes);
    heap_free(choices);
    products_deinit(&list);
    return status;
}
