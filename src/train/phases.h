/* The phases of session_open, in the order in which they run; each is collective where it says so. */
#ifndef DMUON_TRAIN_PHASES_H
#define DMUON_TRAIN_PHASES_H

#include "train/session.h"

/* device.c: the backend, this rank's GPU and the transport, before anything is created; then the device. Collective. */
DM_NODISCARD Status phase_choose_device(Session *session);
DM_NODISCARD Status phase_open_device(Session *session);
/* products.c: algorithms for the device's matrix products, where it has more than one for each. Collective. */
DM_NODISCARD Status phase_products(Session *session);
/* data.c: files, identity, token ids, the leaves of this rank. Collective. */
DM_NODISCARD Status phase_data(Session *session);
/* resume.c: the run directory, its lock, which set to start from; nothing is changed but the lock. Collective. */
DM_NODISCARD Status phase_run(Session *session, const char *set);
/* resume.c: weights and state: a set, init_from, or initial values; then the log is cut or moved. Collective. */
DM_NODISCARD Status phase_state(Session *session);
/* memory.c: refuses when the planned bytes of a node, or of a GPU, exceed 95 % of what is available. Collective. */
DM_NODISCARD Status phase_memory(Session *session);

#endif
