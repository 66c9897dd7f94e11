/* The lane sum of the numerics contract: element i goes to lane i mod 32 in ascending i, then the lanes fold in halves.
 * Loops over the 32 lanes have a constant length, so the compiler turns them into whole vectors of any unit. */
#ifndef DMUON_KERNELS_CPU_LANES_H
#define DMUON_KERNELS_CPU_LANES_H

#define LANES 32

static inline float lanes_fold(float lane[LANES]) {
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            lane[l] += lane[l + half];
    return lane[0];
}

static inline double lanes_fold64(double lane[LANES]) {
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            lane[l] += lane[l + half];
    return lane[0];
}

#endif
