/* Look-ups of rows that are stored at reduced precision.
 *
 * Sums are taken in the order of the ids and no product is fused with a sum, so that results have the same bits on every
 * machine and equal those of the training's kernels. Compiled with -ffp-contract=off.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { FP32, FP16, INT8, INT4 };
enum { AHEAD = 8 };

/* Which of 64 rows are in an overlay, and how many rows before them are. */
struct overlaid {
    uint64_t bits, before;
};

/* Where rows are: `per_block` rows of `width` bytes at the beginning of each `stride` bytes.
 *
 * overlay: NULL, or an entry for each 64 rows. The n-th row that is in the overlay is the row places[n] of `log`, which
 * has rows of `width` bytes, one behind the other.
 */
struct place {
    const uint8_t *data;
    int64_t per_block, stride, width;
    int32_t dim, precision;
    const struct overlaid *overlay;
    const uint32_t *places;
    const uint8_t *log;
};

/* How a mean is made of a sum; the two differ in the last bit. */
enum { MULTIPLIED = 1, DIVIDED = 2 };

/* The look-ups of a feature. A row of the output is that of one id, or the sum of those of a bag.
 *
 * ids: the row of each id, -1 for a row of zeros; NULL: rows 0, 1, 2, ... of the place.
 * offsets: where the ids of each output row begin, and where the last ones end; NULL: one id each.
 */
struct feature {
    struct place place;
    const int64_t *ids, *offsets;
    int64_t count;
    int32_t mean, unused;
    float *out;
};

static inline const uint8_t *row_at(const struct place *place, int64_t id) {
    if (place->overlay) {
        const struct overlaid *some = place->overlay + (id >> 6);
        uint64_t bit = 1ull << (id & 63);
        if (some->bits & bit) {
            int64_t at = (int64_t)some->before + __builtin_popcountll(some->bits & (bit - 1));
            return place->log + (int64_t)place->places[at] * place->width;
        }
    }
    return place->data + id / place->per_block * place->stride + id % place->per_block * place->width;
}

static inline float half_to_float(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = (half >> 10) & 31, digits = half & 0x3ff, bits;
    if (exponent == 0) {
        float small = (float)digits * 0x1p-24f;
        return sign ? -small : small;
    }
    bits = sign | (exponent == 31 ? 0x7f800000 : (exponent + 112) << 23) | digits << 13;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline void decode(const struct place *place, const uint8_t *row, float *out) {
    int32_t dim = place->dim;
    if (place->precision == FP32) {
        memcpy(out, row, 4 * (size_t)dim);
    } else if (place->precision == FP16) {
        for (int32_t i = 0; i < dim; i++) {
            uint16_t half;
            memcpy(&half, row + 2 * i, 2);
            out[i] = half_to_float(half);
        }
    } else {
        float low, step;
        memcpy(&low, row, 4);
        memcpy(&step, row + 4, 4);
        const uint8_t *codes = row + 8;
        if (place->precision == INT8) {
            for (int32_t i = 0; i < dim; i++) out[i] = (float)codes[i] * step + low;
        } else {
            for (int32_t i = 0; i < dim; i++) out[i] = (float)((codes[i / 2] >> (i % 2 * 4)) & 15) * step + low;
        }
    }
}

/* The addresses of the next AHEAD ids, which are being fetched into the cache; each is found once. */
struct ahead {
    const uint8_t *rows[AHEAD];
};

static inline const uint8_t *fetched(const struct place *place, int64_t id) {
    if (id < 0) return NULL;
    const uint8_t *row = row_at(place, id);
    __builtin_prefetch(row);
    return row;
}

/* Returns the row of the i-th id, NULL for a row of zeros, and begins to fetch that of a later one. */
static inline const uint8_t *next_row(
    const struct place *place, struct ahead *ahead, const int64_t *ids, int64_t i, int64_t last
) {
    if (!ids) return row_at(place, i);
    const uint8_t *row = ahead->rows[i % AHEAD];
    if (i + AHEAD < last) ahead->rows[i % AHEAD] = fetched(place, ids[i + AHEAD]);
    if (place->overlay && i + 2 * AHEAD < last && ids[i + 2 * AHEAD] >= 0)
        __builtin_prefetch(place->overlay + (ids[i + 2 * AHEAD] >> 6));
    return row;
}

static void look_up(const struct feature *feature, float *row) {
    const struct place *place = &feature->place;
    const int64_t *ids = feature->ids, *offsets = feature->offsets;
    int32_t dim = place->dim;
    int64_t first = offsets ? offsets[0] : 0, last = offsets ? offsets[feature->count] : feature->count;
    struct ahead ahead;
    for (int64_t i = first; ids && i < first + AHEAD && i < last; i++) ahead.rows[i % AHEAD] = fetched(place, ids[i]);
    for (int64_t b = 0; b < feature->count; b++) {
        float *out = feature->out + b * dim;
        int64_t start = offsets ? offsets[b] : b, end = offsets ? offsets[b + 1] : b + 1;
        if (!offsets) {
            const uint8_t *found = next_row(place, &ahead, ids, b, last);
            if (found) decode(place, found, out);
            else memset(out, 0, 4 * (size_t)dim);
            continue;
        }
        memset(out, 0, 4 * (size_t)dim);
        for (int64_t i = start; i < end; i++) {
            decode(place, next_row(place, &ahead, ids, i, last), row);
            for (int32_t j = 0; j < dim; j++) out[j] += row[j];
        }
        if (feature->mean == MULTIPLIED && end > start) {
            float share = 1.0f / (float)(end - start);
            for (int32_t j = 0; j < dim; j++) out[j] *= share;
        } else if (feature->mean == DIVIDED && end > start) {
            float number = (float)(end - start);
            for (int32_t j = 0; j < dim; j++) out[j] /= number;
        }
    }
}

/* Looks up all features; returns 0, or 1 if there is no memory. */
int zs_look_up(const struct feature *features, int64_t count) {
    int32_t widest = 1;
    for (int64_t f = 0; f < count; f++)
        if (features[f].place.dim > widest) widest = features[f].place.dim;
    float *row = malloc(4 * (size_t)widest);
    if (row == NULL) return 1;
    for (int64_t f = 0; f < count; f++) look_up(&features[f], row);
    free(row);
    return 0;
}

/* Copies rows, ids in any order, to `out`, one behind the other. */
void zs_gather(const struct place *place, int64_t count, const int64_t *ids, uint8_t *out) {
    for (int64_t i = 0; i < count; i++) {
        if (i + AHEAD < count) __builtin_prefetch(row_at(place, ids[i + AHEAD]));
        memcpy(out + i * place->width, row_at(place, ids[i]), (size_t)place->width);
    }
}
