/* The sizes of the network and the arithmetic of its work. */
#include "model/shape.h"

#include "mesh/extent.h"

/* The largest power of two that divides n. */
static int64_t power_of_two_in(int64_t n) {
    return n & -n;
}

ModelShape model_shape(const Config *config) {
    const ModelConfig *m = &config->model;
    const int segments = config_lowered_segments(config);
    return (ModelShape){
        .C = m->d_model,
        .L = m->n_layers,
        .H = m->n_heads,
        .K = m->n_kv_heads,
        .D = m->head_dim,
        .F = m->d_ff,
        .vocab = m->vocab_size,
        .V = round_up(m->vocab_size, segments),
        .max_T = m->max_seq_len,
        .rope_theta = m->rope_theta,
        .eps = (float)m->norm_eps,
        .init_std = m->init_std,
        .tied = m->tie_embeddings,
        .qkv_bias = m->qkv_bias,
        .qk_norm = m->qk_norm,
        .segments = segments,
        .kv_runs = (int)power_of_two_in(m->n_kv_heads),
    };
}

/* Elements of the matrices inside the decoder layers. */
static double layer_matrix_elements(const ModelShape *s) {
    const double attention = (double)s->C * (double)(2 * s->H + 2 * s->K) * (double)s->D;
    const double mlp = 3.0 * (double)s->C * (double)s->F;
    return (double)s->L * (attention + mlp);
}

/* Forward, one token: a matrix of n elements costs 2n (multiply and add); the lookup costs nothing, the head counts
 * whether tied or not. Attention: a head makes T(T+1)/2 score pairs per sequence, each 2D for q*k and 2D for p*v:
 * 2D(T+1) per token, head and layer. */
double model_forward_flops(const ModelShape *shape, int64_t tokens, int64_t T) {
    const double products = 2.0 * (layer_matrix_elements(shape) + (double)shape->vocab * (double)shape->C);
    const double attention = 2.0 * (double)shape->D * (double)(T + 1) * (double)(shape->H * shape->L);
    return (products + attention) * (double)tokens;
}

/* The backward pass makes two products for each of the forward's; work that is done twice to save memory does not
 * count. */
double model_flops(const ModelShape *shape, int64_t tokens, int64_t T) {
    return 3.0 * model_forward_flops(shape, tokens, T);
}
